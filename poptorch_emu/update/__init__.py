"""Optimisers on three floors: formulas, these recorded as graphs, and the parts of an update."""
