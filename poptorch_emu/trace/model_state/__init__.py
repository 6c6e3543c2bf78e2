"""Parameters, buffers and Python attributes of a module during its trace."""
