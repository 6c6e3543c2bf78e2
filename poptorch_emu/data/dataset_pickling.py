"""Pickling of a dataset for the worker process, by the sharing strategy.

By default, multiprocessing and PyTorch move each tensor into shared memory and pass a file
descriptor for it. That saves a copy, but a dataset of many tensors needs more descriptors than a
process may have, or than the fork server accepts. The two classes here pass values instead.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from typing import IO, Any

from poptorch_emu.enums import SharingStrategy


class _Copy:
    """Pickles an object by value, within the message that starts the process."""

    def __init__(self, content: Any) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (pickle.dumps(self._content, pickle.HIGHEST_PROTOCOL),)


class _FileCopy:
    """Pickles an object by value, to a file."""

    def __init__(self, content: Any, file: IO[bytes]) -> None:
        self._content = content
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        pickle.dump(self._content, self._file, pickle.HIGHEST_PROTOCOL)
        self._file.seek(0)  # `seek` also flushes the file.
        return _load, (DupFd(self._file.fileno()),)


@contextmanager
def picklable(dataset: Any, strategy: SharingStrategy) -> Iterator[Any]:
    """Yields an object that a process which starts in this context unpickles to `dataset`."""
    if strategy is SharingStrategy.ForkServer:
        yield _Copy(dataset)
    elif strategy is SharingStrategy.FileSystem:
        # The file has no name, so it is never left behind.
        with tempfile.TemporaryFile() as file:
            yield _FileCopy(dataset, file)
    else:
        yield dataset


def _load(descriptor: Any) -> Any:
    with os.fdopen(descriptor.detach(), "rb") as file:
        return pickle.load(file)
