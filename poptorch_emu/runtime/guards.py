"""Checks that tensors, and objects in dicts, are unchanged; implemented in C++ for speed.

Each call of a model runs these checks.
"""

from __future__ import annotations

from poptorch_emu import _C

# Returns whether each tensor has the given version (0 if made in inference mode) and address.
have_states = _C.have_states
# Returns whether each tensor has the given value of requires_grad.
have_flags = _C.have_flags
# Returns whether each dict holds the identical object under its key.
are_held = _C.are_held
# Returns whether all are plain CPU tensors, and the second ones are contiguous with the shapes and
# types of the first ones.
are_like = _C.are_like
