"""A run in a file: a zip archive with a list in JSON, and the bytes of each value.

Entries are stored without compression, each with zip's check sum, so that values are written and
read one by one. Reading executes nothing, so that a file may come from anybody.
"""

from __future__ import annotations

import json
import math
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from poptorch_emu.errors import Error, make_error
from poptorch_emu.numbers.run import Direction, Position, TakenValues, Value
from poptorch_emu.tensor_bytes import bytes_of
from poptorch_emu.untrusted.files import open_regular
from poptorch_emu.untrusted.json_types import COUNT, type_fault
from poptorch_emu.version import __version__

FORMAT = "poptorch_emu run"
VERSION = 1
_LIST = "run.json"

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
        torch.complex64, torch.complex128,
    )
}  # fmt: skip
_VALUE = {
    "kind": str, "result": COUNT, "direction": str, "module": str, "line": str, "dtype": str,
    "shape": [COUNT], "name": str, "settings": {str: (int, float, bool, None, str)},
    "is_random": bool, "positions": [[COUNT, COUNT]],
}  # fmt: skip
_CONTENT = {"format": str, "version": COUNT, "package": str, "torch": str, "values": [_VALUE]}


class RunWriter(TakenValues):
    """Context manager that writes the values of a run as they come, and completes the file."""

    def __init__(self, path: Path) -> None:
        """Creates the file, and overwrites an existing one."""
        super().__init__()
        self._file = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED)

    def __enter__(self) -> RunWriter:
        """Returns itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        """Writes the list of values unless an error occurred; without it the file is no run."""
        if kind is None:
            self._file.writestr(_LIST, json.dumps(self._content()))
        self._file.close()

    def add(self, index: int, position: Position, tensor: torch.Tensor) -> None:
        """Writes value number `index` at a position; its first tensor determines type and shape."""
        self._note(index, position, tensor)
        with self._file.open(_entry(index, position), "w") as entry:
            entry.write(_bytes_of(tensor))

    def _content(self) -> dict[str, Any]:
        values = zip(self._values, self._positions, strict=True)
        return {
            "format": FORMAT,
            "version": VERSION,
            "package": __version__,
            "torch": torch.__version__,
            "values": [_plain(value, positions) for value, positions in values],
        }


class StoredRun:
    """A run whose values are read from a file."""

    def __init__(self, file: BinaryIO, title: str) -> None:
        """Reads the list of values.

        Args:
            file: open file; it must stay open as long as values are read.
            title: name of the run in reports and errors.

        Raises:
            Error: the file is not a recorded run, is damaged, or has another version.
        """
        self.title = title
        try:
            self._archive = zipfile.ZipFile(file)
            content = _content_of(self._archive, title)
            self.values = tuple(_value(entry) for entry in content["values"])
        except (zipfile.BadZipFile, KeyError, ValueError, OverflowError, RecursionError) as cause:
            raise _invalid(title, f"it cannot be read ({cause})") from cause
        self._made = [{(m, r) for m, r in entry["positions"]} for entry in content["values"]]
        self.positions = tuple(sorted(set().union(*self._made)))

    def read(self, index: int, position: Position) -> torch.Tensor | None:
        """Returns value number `index` at a position; `None` if the run has no such value there.

        Raises:
            Error: the file is damaged.
        """
        if position not in self._made[index]:
            return None
        value = self.values[index]
        try:
            data = _stored_bytes(self._archive, _entry(index, position))
            return _tensor(data, value)
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError) as cause:
            raise _invalid(self.title, f"'{value.title}' cannot be read ({cause})") from cause


@contextmanager
def opened(path: Path, title: str = "") -> Iterator[StoredRun]:
    """Opens the file of a run.

    Args:
        path: path of a regular file.
        title: name of the run in reports; by default the name of the file.

    Raises:
        Error: the file is not a recorded run, is damaged, or has another version.
        OSError: the file does not exist or is not a regular file.
    """
    with open_regular(path) as file:
        yield StoredRun(file, title or path.name)


def _entry(index: int, position: Position) -> str:
    return f"{index}/{position[0]}.{position[1]}"


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(_little_endian(bytes_of(tensor).numpy(), tensor.itemsize).data)


def _little_endian(flat: np.ndarray, width: int) -> np.ndarray:
    """Converts numbers between the byte order of the computer and little-endian."""
    if sys.byteorder == "little":
        return flat
    return np.ascontiguousarray(flat.reshape(-1, width)[:, ::-1]).reshape(-1)


def _tensor(data: bytes, value: Value) -> torch.Tensor:
    width = value.dtype.itemsize
    if len(data) != math.prod(value.shape) * width:
        raise ValueError(f"{len(data)} bytes are not {value.dtype}{list(value.shape)}")
    if not data:
        return torch.empty(value.shape, dtype=value.dtype)
    flat = _little_endian(np.frombuffer(bytearray(data), np.uint8), width)
    return torch.from_numpy(flat).view(value.dtype).reshape(value.shape)


def _stored_bytes(archive: zipfile.ZipFile, name: str) -> bytes:
    """Returns an entry; rejects a compressed one, which could expand to any size."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
        raise ValueError(f"{name} is packed")
    return archive.read(entry)


def _content_of(archive: zipfile.ZipFile, title: str) -> Any:
    content = json.loads(_stored_bytes(archive, _LIST))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("its list is of another kind")
    if content.get("version") != VERSION:
        raise _invalid(
            title,
            f"its format is of version {content.get('version')!r}, and this package "
            f"({__version__}) reads version {VERSION}",
        )
    fault = type_fault(content, _CONTENT, "run")
    if fault:
        raise ValueError(fault)
    return content


def _plain(value: Value, positions: list[Position]) -> dict[str, Any]:
    return {
        "kind": value.kind,
        "result": value.result,
        "direction": value.direction.value,
        "module": value.module,
        "line": value.line,
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "name": value.name,
        "settings": dict(value.settings),
        "is_random": value.is_random,
        "positions": [list(position) for position in positions],
    }


def _value(entry: dict[str, Any]) -> Value:
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"{entry['dtype']!r} is not a dtype of PyTorch")
    return Value(
        entry["kind"],
        entry["result"],
        Direction(entry["direction"]),
        entry["module"],
        entry["line"],
        _DTYPES[entry["dtype"]],
        tuple(entry["shape"]),
        entry["name"],
        entry["settings"],
        entry["is_random"],
    )


def _invalid(title: str, fault: str) -> Error:
    return make_error(
        f"{title} is no run that emulator.record has written: {fault}. Record it again."
    )
