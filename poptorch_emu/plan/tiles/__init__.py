"""What the tiles of each IPU of the machine would hold."""
