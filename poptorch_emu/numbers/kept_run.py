"""A run in an unnamed temporary file, for as long as it is compared.

No other process reads the file, so that values need no check sums and no structure.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cached_property

import torch

from poptorch_emu.numbers.run import Place, TakenValues, Value


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
        self._stored: dict[tuple[int, Place], _Stored] = {}

    def __enter__(self) -> KeptRun:
        """Returns itself."""
        return self

    def __exit__(self, *failure: object) -> None:
        """Removes the values."""
        self._file.close()

    def add(self, index: int, place: Place, tensor: torch.Tensor) -> None:
        """Stores value number `index` at a place; its first tensor determines type and shape."""
        self._note(index, place, tensor)
        self._stored[index, place] = _Stored(self._file.tell(), tensor.dtype, tensor.shape)
        self._file.write(_bytes_of(tensor.detach().contiguous()))

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values, in the order of their declaration."""
        return tuple(self._values)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """(micro-batch, replica) of all values, sorted."""
        return tuple(sorted({place for places in self._places for place in places}))

    def read(self, index: int, place: Place) -> torch.Tensor | None:
        """Returns value number `index` at a place; `None` if the run has no such value there."""
        stored = self._stored.get((index, place))
        if stored is None:
            return None
        tensor = torch.empty(stored.shape, dtype=stored.dtype)
        self._file.seek(stored.begin)
        self._file.readinto(_bytes_of(tensor))
        return tensor


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
