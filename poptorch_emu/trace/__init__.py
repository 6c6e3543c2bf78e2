"""From a `torch.nn.Module` to a graph."""
