"""Writes shared libraries without content, for programs that look for one before they load it.

`python -m poptorch_emu.empty_library custom_ops.so` writes the file. It also stands for a compiler,
as in `make CXX="python -m poptorch_emu.empty_library"`: it writes what follows `-o`.
"""

from __future__ import annotations

import argparse
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

from poptorch_emu.untrusted.files import write_named

# Number of each machine in ELF, and its largest page in bytes. Source: the System V ABI, chapters 4
# and 5, and its supplements for these machines.
_MACHINES = {"x86_64": (62, 0x1000), "aarch64": (183, 0x10000)}
_SHARED_OBJECT, _VERSION = 3, 1
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ_WRITE = 6
_HASH, _STRINGS, _SYMBOLS, _STRINGS_BYTES, _SYMBOL_BYTES = 4, 5, 6, 10, 11
_HEADER_BYTES, _SEGMENT_BYTES, _ENTRY_BYTES, _SYMBOL_SIZE = 64, 56, 16, 24


def empty_library(machine: str | None = None) -> bytes:
    """Returns a shared library (ELF) without symbols, for this machine or another one.

    Raises:
        ValueError: libraries of that machine are not supported.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise ValueError(
            f"libraries for {machine!r} are not known; expected one of {list(_MACHINES)}"
        )
    number, page = _MACHINES[machine]
    dynamic = _HEADER_BYTES + 3 * _SEGMENT_BYTES
    table = dynamic + 6 * _ENTRY_BYTES
    symbols = table + 16
    strings = symbols + _SYMBOL_SIZE
    size = strings + 1
    entries = {_HASH: table, _STRINGS: strings, _SYMBOLS: symbols}
    entries |= {_STRINGS_BYTES: 1, _SYMBOL_BYTES: _SYMBOL_SIZE, 0: 0}
    header = struct.pack(
        "<16s2HI3QI6H",
        b"\x7fELF\x02\x01\x01",
        *(_SHARED_OBJECT, number, _VERSION),
        *(0, _HEADER_BYTES, 0, 0),
        *(_HEADER_BYTES, _SEGMENT_BYTES, 3, 64, 0, 0),
    )
    segments = (
        _segment(_LOAD, 0, size, page),
        _segment(_DYNAMIC, dynamic, 6 * _ENTRY_BYTES, 8),
        _segment(_STACK, 0, 0, 16),
    )
    # One empty hash bucket, and the unnamed symbol that every library has.
    tables = struct.pack("<4I", 1, 1, 0, 0) + bytes(_SYMBOL_SIZE) + b"\0"
    entry = (struct.pack("<2Q", *each) for each in entries.items())
    return header + b"".join(segments) + b"".join(entry) + tables


def _segment(kind: int, offset: int, size: int, alignment: int) -> bytes:
    return struct.pack("<2I6Q", kind, _READ_WRITE, offset, offset, offset, size, size, alignment)


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the libraries that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m poptorch_emu.empty_library", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("paths", type=Path, nargs="*", help="the libraries to write")
    parser.add_argument("-o", type=Path, dest="output", help="the one library to write")
    # Other options of a compiler are ignored.
    given, _ = parser.parse_known_args(arguments)
    paths = [given.output] if given.output else [p for p in given.paths if ".so" in p.name]
    if not paths:
        parser.error("name a library to write, such as custom_ops.so")
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_named(path, empty_library())


if __name__ == "__main__":
    main()
