"""Errors for code that cannot be captured, with its line and an alternative; strict mode."""
