"""Memory of the tiles of each IPU of the real machine."""
