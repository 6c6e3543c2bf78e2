"""Runs of a model, operation by operation, and where the numbers of two of them part."""
