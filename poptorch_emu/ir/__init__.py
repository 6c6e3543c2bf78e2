"""Floor 1: the graph: `torch.fx.Graph`, and what it does not say."""
