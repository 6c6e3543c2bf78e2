"""Optimisers from their formulas to what an IPU runs: three floors, one folder for each."""
