"""Stand-ins for the modules that programs import beside PopTorch; see `names/aliases.py`."""
