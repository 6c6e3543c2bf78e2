"""What is kept of a compilation: keys, files, and a folder of them."""
