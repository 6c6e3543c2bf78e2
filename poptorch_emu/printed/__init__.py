"""Tables and records for terminals and notebooks, which every other room may use."""
