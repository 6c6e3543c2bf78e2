"""What an update is made of, as segments and the links between them."""
