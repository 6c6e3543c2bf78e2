"""Calls of a compiled model: arguments, devices, sessions and results."""
