"""Functions of `IPUStrategy.run`: captured once, with their loops as device iterations.

A function runs twice in Python. The first run, on the host, discovers its loops and updates. The
second run is traced, with one pass of its loop. No file here imports TensorFlow itself.
"""
