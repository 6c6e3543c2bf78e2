"""The graph: `torch.fx.Graph` with records, typed sources and sinks, and operator traits."""
