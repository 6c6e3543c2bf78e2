"""TensorFlow's functions on values of the device.

TensorFlow itself traces each function that a program calls into a graph of raw operators, with its
own checks of arguments, types and shapes. PyTorch computes each raw operator as soon as it is in
the graph. So no function of TensorFlow has to be reimplemented.
"""
