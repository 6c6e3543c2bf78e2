"""A compiled model as programs of plain PyTorch: stages for its pipelining, or one module."""
