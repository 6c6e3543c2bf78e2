"""Memory layouts, prepared values and fused updates of the engine's segments."""
