"""`ipu_tensorflow_addons`: layers and optimisers that programs of TensorFlow for the IPU use."""
