"""Records operations on fake tensors into a graph, and bodies of loops into regions."""
