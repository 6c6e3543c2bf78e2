"""What `import poptorch`, and the modules that programs import beside it, mean here."""
