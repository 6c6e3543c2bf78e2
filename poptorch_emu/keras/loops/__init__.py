"""Functions that `IPUStrategy.run` runs: captured once, their loop becomes device iterations.

A function is run twice in Python. The first run, on the host, finds out what it is made of; the
second one is traced, with one pass of its loop. No file here imports TensorFlow by itself.
"""
