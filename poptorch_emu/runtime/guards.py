"""Checks that tensors, and objects in dicts, are unchanged; implemented in C++ for speed.

Each call of a model runs these checks.
"""

from __future__ import annotations

from poptorch_emu import _C

# Returns whether each tensor has its version (0 in inference mode) and its address.
have_states = _C.have_states
# Returns whether each tensor's requires_grad is as recorded.
have_flags = _C.have_flags
# Returns whether each dict holds the identical object under its key.
are_held = _C.are_held
# Returns whether all are plain CPU tensors, and the second ones are contiguous with the shapes and
# types of the first ones.
are_like = _C.are_like
