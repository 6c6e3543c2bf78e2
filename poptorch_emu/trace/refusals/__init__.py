"""What cannot be captured, with the user's line and an alternative; strict mode."""
