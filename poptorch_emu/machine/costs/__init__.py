"""Cycles and temporary bytes of operations on the tiles of one IPU, one file for each family."""
