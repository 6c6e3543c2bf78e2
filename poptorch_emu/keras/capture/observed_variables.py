"""Variables of Keras that a function reads or assigns while it runs on the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from poptorch_emu.keras.capture.capture_state import current
from poptorch_emu.trace.pytorch.patches import patched


class ObservedVariables:
    """The variables that a function used.

    Attributes:
        assigned: variables that were assigned, by their ids.
    """

    def __init__(self) -> None:
        self._used: dict[int, Any] = {}
        self.assigned: dict[int, Any] = {}

    @property
    def used(self) -> list[Any]:
        """All used variables, in the order of their first use."""
        return list(self._used.values())

    def note(self, variable: Any) -> None:
        """Records that a variable is used."""
        self._used.setdefault(id(variable), variable)


@contextmanager
def observed() -> Iterator[ObservedVariables]:
    """Records the variables that this thread's capture uses, and discards its assignments."""
    found = ObservedVariables()
    capture = current()
    read, assign = keras.Variable.value.fget, keras.Variable._direct_assign

    def value(variable: Any) -> Any:
        if current() is capture:
            found.note(variable)
            if capture is not None:
                capture.note_read(variable)
        return read(variable)

    def direct_assign(variable: Any, new: Any) -> None:
        if current() is not capture:
            assign(variable, new)
            return
        found.note(variable)
        found.assigned[id(variable)] = variable

    with patched(keras.Variable, value=property(value), _direct_assign=direct_assign):
        yield found
