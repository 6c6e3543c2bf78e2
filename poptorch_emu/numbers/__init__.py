"""Records the values of a run, operation by operation, and finds where two runs differ."""
