"""Loads most modules of the package without a garbage collection in between.

Loading makes no garbage, but enough objects that Python would look through all of PyTorch's, which
takes as long as half of the loading itself.
"""

from __future__ import annotations

import gc
import importlib

_is_enabled = gc.isenabled()
gc.disable()
try:
    importlib.import_module("poptorch_emu.executor.factories")  # Which needs nearly all of them.
finally:
    if _is_enabled:
        gc.enable()
