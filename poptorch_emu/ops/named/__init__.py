"""Operators that programs name and that were C++ libraries on the IPU, one file a family."""
