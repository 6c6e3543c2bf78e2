"""What the hardware is and what things take there: chips, systems, costs, memory of tiles."""
