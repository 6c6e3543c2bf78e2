"""Keras optimisers as updates of the device."""
