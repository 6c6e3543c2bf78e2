"""Parts of PyTorch that behave differently during a trace, and are restored afterwards."""
