"""Built-in operators that replace C++ libraries for the IPU, one file for each family."""
