"""The hardware as data and formulas: chips, systems, costs of operations, memory of tiles."""
