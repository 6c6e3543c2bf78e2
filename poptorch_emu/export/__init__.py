"""Exports of a compiled model to plain PyTorch: stages of its pipelining, or one module."""
