"""Floor 4: graph to graph. One file a pass, one function `run` each."""
