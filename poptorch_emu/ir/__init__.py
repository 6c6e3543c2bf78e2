"""The graph: `torch.fx.Graph`, and what it does not say."""
