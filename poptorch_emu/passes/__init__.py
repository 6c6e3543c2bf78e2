"""Graph to graph. One file a pass, one function `run` each."""
