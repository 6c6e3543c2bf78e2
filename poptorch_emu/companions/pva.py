"""`pva`, the analyser's library: see `names/companions/pva.py`."""

from poptorch_emu.names.companions.pva import *  # noqa: F403
