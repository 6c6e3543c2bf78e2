"""What the operations of a graph are for the model of the machine."""
