"""The file of an executable is accepted only if it is whole and of a known version."""

from __future__ import annotations

import json
import struct

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu.compile.stored import container
from poptorch_emu.compile.stored.container import pack, unpack

SECTIONS = {"first": b"abc" * 20, "empty": b"", "last": bytes(range(40))}


def test_sections_when_packed_and_unpacked_then_are_the_same() -> None:
    found = unpack(pack(SECTIONS), "f")
    assert found.sections == SECTIONS
    assert found.version == poptorch.__version__
    assert found.is_of_this_version


def test_every_cut_then_error_names_the_file() -> None:
    data = pack(SECTIONS)
    for size in range(len(data)):
        with pytest.raises(poptorch.Error, match="Invalid file the/file: it is (cut short|not an)"):
            unpack(data[:size], "the/file")


def test_every_changed_byte_then_error() -> None:
    data = pack(SECTIONS)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x10
        with pytest.raises(poptorch.Error, match="Invalid file f: "):
            unpack(bytes(changed), "f")


def test_lengths_moved_between_header_and_sections_then_error() -> None:
    data = bytearray(pack(SECTIONS))
    start = len(container._MAGIC) + 4  # After the magic word and the layout version.
    header_size, body_size = struct.unpack_from("<IQ", data, start)
    struct.pack_into("<IQ", data, start, header_size - 1, body_size + 1)
    with pytest.raises(poptorch.Error, match="damaged"):
        unpack(bytes(data), "f")


def test_bytes_behind_the_end_then_error() -> None:
    with pytest.raises(poptorch.Error, match="damaged"):
        unpack(pack(SECTIONS) + b"x", "f")


def test_other_layout_then_error_says_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_LAYOUT", 7)
    data = pack(SECTIONS)
    monkeypatch.undo()
    with pytest.raises(poptorch.Error, match="PopTorch version mismatch"):
        unpack(data, "f")


@pytest.mark.parametrize("versioned", [container, torch], ids=["package", "PyTorch"])
def test_other_version_then_is_not_of_this_one(
    versioned: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(versioned, "__version__", "0.0.1")
        data = pack(SECTIONS)
    assert not unpack(data, "f").is_of_this_version


def test_header_then_is_json_that_lists_the_sections() -> None:
    data = pack(SECTIONS)
    start = data.index(b"{")
    header, _ = json.JSONDecoder().raw_decode(data[start:].decode("latin1"))
    assert header["sections"] == [["first", 60], ["empty", 0], ["last", 40]]
