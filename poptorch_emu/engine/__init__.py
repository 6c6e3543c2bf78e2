"""What the engine of the host is told: the cut graph rewritten for it, laid out and lowered."""
