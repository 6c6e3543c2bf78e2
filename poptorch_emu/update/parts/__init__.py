"""The parts of an update: the segments that each IPU runs at the end of a window."""
