"""Passes from graph to graph. Each file is one pass with one function `run`."""
