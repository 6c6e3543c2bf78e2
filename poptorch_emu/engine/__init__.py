"""Prepares the program of the host's engine: rewrites, layouts and lowering of the cut graph."""
