"""Guards: whether tensors, and objects in dicts, are still what they were; C++ asks all at once.

Each call of a model asks.
"""

from __future__ import annotations

from poptorch_emu import _C

# Whether each tensor has its version, 0 of one made in inference mode, and its place in memory.
have_states = _C.have_states
# Whether each tensor requires a gradient or not, as its flag says.
have_flags = _C.have_flags
# Whether each dict holds the very object under its key.
are_held = _C.are_held
# Whether all are ordinary tensors of the CPU, the latter contiguous and of the former's shapes and
# types.
are_like = _C.are_like
