"""Floor 1: the optimisers' rules as plain PyTorch, and what configures them."""
