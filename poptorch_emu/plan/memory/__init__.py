"""Memory of each IPU in the engine, and its traffic with streaming memory."""
