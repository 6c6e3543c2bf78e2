"""The optimisers' rules as plain PyTorch, and the values that configure them."""
