"""Several micro-batches of a window as one: fewer and larger operations on the host."""
