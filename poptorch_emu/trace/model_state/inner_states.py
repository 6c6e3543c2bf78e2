"""States inside of objects of Python and NumPy that code changes in place: elements of arrays,
random generators, and positions of files."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from poptorch_emu.errors import compiler_error

# Larger arrays are data and no state.
_MAX_ELEMENTS = 2**16


@dataclass(frozen=True)
class InnerState:
    """The state inside of an object.

    Attributes:
        holder: the object.
        state: the state as it was found.
        put: function of the object and a state, which gives it this state.
    """

    holder: Any
    state: Any
    put: Callable[[Any, Any], object]

    def differs(self, other: InnerState | None) -> bool:
        """Returns whether the object had another state; `None` stands for an unknown one."""
        if other is None or other.holder is not self.holder:
            return False
        return pickle.dumps(self.state) != pickle.dumps(other.state)

    def restore(self) -> None:
        """Gives the object this state again.

        Raises:
            Error: the object is a file, which something was written to.
        """
        now = inner_state(self.holder)
        if now is None or now.differs(self):
            self.put(self.holder, self.state)


def inner_state(value: Any) -> InnerState | None:
    """Returns the present state inside of an object; `None` if it has none that is known."""
    if isinstance(value, np.ndarray):
        is_small = value.size <= _MAX_ELEMENTS and value.dtype != object
        return InnerState(value, value.copy(), np.copyto) if is_small else None
    if isinstance(value, np.random.Generator):
        return InnerState(value, value.bit_generator.state, _put_into_generator)
    if isinstance(value, np.random.RandomState):
        return InnerState(value, value.get_state(), np.random.RandomState.set_state)
    if isinstance(value, random.Random):
        return InnerState(value, value.getstate(), random.Random.setstate)
    if isinstance(value, io.IOBase) and not value.closed and value.writable() and value.seekable():
        return InnerState(value, value.tell(), _refuse)
    return None


def _put_into_generator(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


def _refuse(file: Any, position: int) -> None:
    raise compiler_error(
        f"The function writes to the file {getattr(file, 'name', '')!r}, but it runs several times "
        "while it is captured. Send the values to an IPUOutfeedQueue, and write them on the host."
    )
