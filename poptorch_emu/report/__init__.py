"""Tables, pictures and files for people, on compiled models and their runs."""
