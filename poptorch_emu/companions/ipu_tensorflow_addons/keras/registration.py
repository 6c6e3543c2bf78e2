"""Decorator that registers a class, so that Keras finds it when it loads a saved model."""

import keras

registered = keras.saving.register_keras_serializable(package="ipu_tensorflow_addons")
