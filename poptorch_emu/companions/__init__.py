"""Modules that programs import beside PopTorch, for programs that run without the runner."""
