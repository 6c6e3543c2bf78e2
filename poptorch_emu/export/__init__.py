"""Exports of a compiled model to plain PyTorch: as stages of its pipelining, or as one module."""
