"""Floor 3: from a `torch.nn.Module` to a graph."""
