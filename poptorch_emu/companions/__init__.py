"""Stand-ins for the modules that programs import beside PopTorch; see `poptorch_emu.aliases`."""
