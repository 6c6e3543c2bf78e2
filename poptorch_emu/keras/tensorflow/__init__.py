"""TensorFlow programs: loops and functions under an `IPUStrategy`."""
