"""How long the machine would take: durations, pipelines, updates, host, and what could be."""
