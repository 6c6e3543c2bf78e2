"""Step time on the real machine: durations, pipelines, updates, the host, and better splits."""
