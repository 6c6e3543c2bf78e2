"""Compiles a model to a program for the engine."""
