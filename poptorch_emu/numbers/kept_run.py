"""A run in an unnamed temporary file, for as long as it is compared.

No other process reads the file, so that values need no check sums and no structure.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cached_property

import torch

from poptorch_emu.numbers.run import Position, TakenValues, Value
from poptorch_emu.tensor_bytes import bytes_of


@dataclass(frozen=True)
class _Stored:
    """Position, type and shape of a value in the file."""

    begin: int
    dtype: torch.dtype
    shape: torch.Size


class KeptRun(TakenValues):
    """Context manager that stores the values of a run and removes them at its end."""

    def __init__(self, title: str) -> None:
        """Creates an empty run.

        Args:
            title: name of the run in reports.

        Raises:
            OSError: no temporary file can be created.
        """
        super().__init__()
        self.title = title
        self._file = tempfile.TemporaryFile()
        self._stored: dict[tuple[int, Position], _Stored] = {}

    def __enter__(self) -> KeptRun:
        """Returns itself."""
        return self

    def __exit__(self, *failure: object) -> None:
        """Removes the values."""
        self._file.close()

    def add(self, index: int, position: Position, tensor: torch.Tensor) -> None:
        """Stores value number `index` at a position; its first tensor determines type and shape."""
        self._note(index, position, tensor)
        self._stored[index, position] = _Stored(self._file.tell(), tensor.dtype, tensor.shape)
        self._file.write(bytes_of(tensor).numpy().data)

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values, in the order of their declaration."""
        return tuple(self._values)

    @cached_property
    def positions(self) -> tuple[Position, ...]:
        """(micro-batch, replica) of all values, sorted."""
        return tuple(sorted({position for positions in self._positions for position in positions}))

    def read(self, index: int, position: Position) -> torch.Tensor | None:
        """Returns value number `index` at a position; `None` if the run has no such value there."""
        stored = self._stored.get((index, position))
        if stored is None:
            return None
        tensor = torch.empty(stored.shape, dtype=stored.dtype)
        self._file.seek(stored.begin)
        self._file.readinto(bytes_of(tensor).numpy().data)
        return tensor
