"""Rewrites of the graph that suit the host better and leave the results as they are."""
