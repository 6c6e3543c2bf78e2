"""Floor 1: the optimisers' rules as plain PyTorch, and the values that configure them."""
