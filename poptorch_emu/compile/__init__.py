"""Everything together becomes a program for the engine."""
