"""Maps the operations of a graph to the families and costs of the machine model."""
