"""Programs, files and optimisers of Keras 2."""
