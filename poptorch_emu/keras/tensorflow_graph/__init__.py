"""TensorFlow's functions on values of the device.

TensorFlow itself traces each function that a program calls into a graph of raw operators, with its
own checks of arguments, types and shapes. Each raw operator is computed by PyTorch as soon as it is
in the graph. Functions are not imitated by name.
"""
