"""Floor 1: the graph. `torch.fx.Graph` is the representation; this floor adds what it does not say."""
