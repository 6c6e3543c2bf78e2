"""Records a `torch.nn.Module` as a graph."""
