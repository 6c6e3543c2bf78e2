"""Meaning of `import poptorch`, and of the modules that programs import beside it."""
