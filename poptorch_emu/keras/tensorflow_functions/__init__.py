"""Functions of TensorFlow on values of the device, and on symbolic ones: as Keras has them.

TensorFlow's own dispatch by type hands calls over, where it is there.
"""
