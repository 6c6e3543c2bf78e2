"""A Keras model as a PyTorch module that can be traced, and values during its capture."""
