"""The graph cut into straight-line code: segments, what crosses between them, where it waits."""
