"""Rewrites of the graph that are faster on the host and keep the results."""
