"""The parts of an update: what each IPU runs at the end of a window, and what replicas exchange."""
