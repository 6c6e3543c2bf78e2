"""What comes from outside the process and may be anybody's: files, names, texts, values of JSON.

Nothing here raises an error of the package, so that every other module can use it.
"""
