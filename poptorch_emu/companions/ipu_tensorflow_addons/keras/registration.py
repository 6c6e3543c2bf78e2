"""The name by which Keras finds a class of this package in a file."""

import keras

registered = keras.saving.register_keras_serializable(package="ipu_tensorflow_addons")
