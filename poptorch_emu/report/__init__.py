"""Floor 8: showing what was compiled and what ran."""
