"""`libpvti`, the trace channels of the system analyser: see `names/companions/libpvti.py`."""

from poptorch_emu.names.companions.libpvti import *  # noqa: F403
