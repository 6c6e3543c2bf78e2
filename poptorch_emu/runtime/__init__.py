"""Floor 7: running a compiled model."""
