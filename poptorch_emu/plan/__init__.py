"""Plans the memory and the step time of the machine, without lowering the model."""
