"""Optimisers: their formulas, the formulas recorded as graphs, and the parts of an update."""
