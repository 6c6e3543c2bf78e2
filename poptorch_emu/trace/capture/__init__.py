"""One trace: runs `forward` and backward, and compares two captures."""
