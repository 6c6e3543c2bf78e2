"""Floor 6: everything together becomes a program for the engine."""
