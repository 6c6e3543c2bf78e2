"""Functions that a trace captures in a form of its own: loops, slices, losses, masks."""
