"""`ipu_tensorflow_addons`: layers and optimisers for TensorFlow programs that target the IPU."""
