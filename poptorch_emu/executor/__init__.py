"""Wraps a model: compilation, device, weights, saving and loading."""
