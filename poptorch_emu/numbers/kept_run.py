"""A run that waits on disk for as long as it is compared, in a file that has no name.

Nobody else reads it, so that its values are bytes behind each other, without check sums.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cached_property

import torch

from poptorch_emu.numbers.run import Place, TakenValues, Value


@dataclass(frozen=True)
class _Stored:
    """Where the bytes of a value begin, and what they are."""

    begin: int
    dtype: torch.dtype
    shape: torch.Size


class KeptRun(TakenValues):
    """Takes the values of a run, and gives them back when all are there; a context removes them."""

    def __init__(self, title: str) -> None:
        """Begins a run without values.

        Args:
            title: what it is called in reports.

        Raises:
            OSError: there is no place for temporary files.
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
        """Takes value number `index` at a place; the first one decides on type and shape."""
        self._note(index, place, tensor)
        self._stored[index, place] = _Stored(self._file.tell(), tensor.dtype, tensor.shape)
        self._file.write(_bytes_of(tensor.detach().contiguous()))

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values, in the order in which they were first made."""
        return tuple(self._values)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Each micro-batch of each replica, in order."""
        return tuple(sorted({place for places in self._places for place in places}))

    def read(self, index: int, place: Place) -> torch.Tensor | None:
        """Returns value number `index` at a place; `None` if it was not made there."""
        stored = self._stored.get((index, place))
        if stored is None:
            return None
        tensor = torch.empty(stored.shape, dtype=stored.dtype)
        self._file.seek(stored.begin)
        self._file.readinto(_bytes_of(tensor))
        return tensor


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
