"""Running a compiled model."""
