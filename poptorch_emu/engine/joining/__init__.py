"""Joins several micro-batches of a window, so that the host runs fewer and larger operations."""
