"""A wrapped model: its life, its weights, and how it is saved and loaded."""
