"""Safe handling of input from outside the process: files, names, texts and values of JSON.

No module of this folder raises an error class of the package, so that every other module can use
it.
"""
