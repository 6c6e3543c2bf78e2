"""Checks files of executables that were changed at random, or left by a killed process.

A change is either damage, which the digest detects, or a forgery, in which sections are changed and
the digest and the program's own checksum are corrected. Damage must change no result. A forgery may
change results, but it must not crash the process, and every error must be the package's own.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from support.models import FAMILIES

import poptorch_emu as poptorch
from poptorch_emu.compile.stored.container import pack, unpack

_HEAD = 16  # Size of a program's head in bytes: magic word and checksum.
_VALUES = (None, -1, 0, 1, 2**31, 2**63, 1.5, "", "float32", [], {}, [[]], True)


def options(folder: Path | None = None) -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False).deviceIterations(2)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    return opts.enableExecutableCaching(str(folder)) if folder else opts


@functools.cache
def genuine() -> tuple[dict[str, bytes], list[torch.Tensor]]:
    """Returns the files of a cache and of an export by name, and the model's outputs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wrapped = inference(folder)
        outputs = list(wrapped(*batch()))
        wrapped.save(folder / "exported", export_model=False)
        return {path.name: path.read_bytes() for path in folder.iterdir()}, outputs


def inference(folder: Path | None = None) -> poptorch.PoplarExecutor:
    torch.manual_seed(7)
    return poptorch.inferenceModel(FAMILIES["mlp"].make(2), options(folder))


def batch() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(8)
    return FAMILIES["mlp"].batch(4)


def check_files(seed: int) -> str:
    """Changes one file and loads it; returns a description of the change, or raises a fault."""
    choice = random.Random(seed)
    files, expected = genuine()
    name = choice.choice(sorted(files))
    is_forged = choice.random() < 0.6
    change = forged if is_forged else damaged
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for each, data in files.items():
            (folder / each).write_bytes(change(data, choice) if each == name else data)
        try:
            outputs = list(_used(name, folder)(*batch()))
        except poptorch.Error as error:
            # Damage in the cache never stops a model; only a forged program may raise an error.
            assert name == "exported" or is_forged, error
            return f"{name}: {error}"
    if not is_forged:
        for value, wanted in zip(outputs, expected, strict=True):
            assert torch.equal(value, wanted), "damage changed a result"
    return f"{name}: {'forged' if is_forged else 'damaged'}"


def _used(name: str, folder: Path) -> poptorch.PoplarExecutor:
    if name != "exported":
        return inference(folder)
    wrapped = inference()
    wrapped.loadExecutable(folder / name)
    return wrapped


def damaged(data: bytes, choice: random.Random) -> bytes:
    """Returns `data` with bytes changed, cut off, doubled or added."""
    if not data:
        return b"\0"
    at = choice.randrange(len(data))
    until = min(len(data), at + choice.randint(1, 64))
    kind = choice.randrange(4)
    if kind == 0:
        return (
            data[:at]
            + bytes(byte ^ choice.randint(1, 255) for byte in data[at:until])
            + (data[until:])
        )
    if kind == 1:
        return data[:at]
    return data[:until] + data[at:] if kind == 2 else data[:at] + data[until:]


def forged(data: bytes, choice: random.Random) -> bytes:
    """Returns a complete file in which one section has other contents."""
    sections = dict(unpack(data, "genuine").sections)
    # The pickle is excluded, because by design it can run any code.
    name = choice.choice(sorted(sections.keys() - {"metadata"}))
    if name == "program":
        program = damaged(sections[name][_HEAD:], choice)
        sections[name] = sections[name][:8] + struct.pack("<Q", checksum(program)) + program
    elif choice.random() < 0.1:
        sections[name] = damaged(sections[name], choice)
    else:
        value = json.loads(sections[name])
        for _ in range(choice.randint(1, 2)):
            value = changed(value, choice)
        sections[name] = json.dumps(value).encode()
    return pack(sections)


def changed(value: Any, choice: random.Random, depth: int = 0) -> Any:
    """Returns a value of JSON in which something is replaced, dropped or doubled."""
    is_leaf = not isinstance(value, (dict, list)) or not value
    if is_leaf or (depth and choice.random() < 0.15):
        return choice.choice(_VALUES)
    key = choice.choice(list(value) if isinstance(value, dict) else range(len(value)))
    value = dict(value) if isinstance(value, dict) else list(value)
    if choice.random() < 0.1:
        del value[key]
    elif isinstance(value, list) and choice.random() < 0.1:
        value.append(value[key])
    else:
        value[key] = changed(value[key], choice, depth + 1)
    return value


def checksum(data: bytes) -> int:
    """Returns the checksum of a program: FNV-1a over words of 8 bytes."""
    prime, mask, total = 0x100000001B3, (1 << 64) - 1, 0xCBF29CE484222325
    whole = len(data) // 8 * 8
    for (word,) in struct.iter_unpack("<Q", data[:whole]):
        total = (total ^ word) * prime & mask
        total ^= total >> 32
    for byte in data[whole:]:
        total = (total ^ byte) * prime & mask
    return total


def check_kill(seed: int) -> str:
    """Kills a process while it compiles, saves or loads; checks that files stay usable."""
    choice = random.Random(seed)
    _, expected = genuine()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        child = os.fork()
        if child == 0:
            try:
                _write_and_read(folder)
            finally:
                os._exit(1)
        seconds = choice.uniform(0, 0.6)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        left = sorted(path.name for path in folder.iterdir())
        for name in left:
            if not name.startswith("."):
                unpack((folder / name).read_bytes(), name)
        for value, wanted in zip(inference(folder)(*batch()), expected, strict=True):
            assert torch.equal(value, wanted)
        if "exported" in left:
            wrapped = inference()
            wrapped.loadExecutable(folder / "exported")
            for value, wanted in zip(wrapped(*batch()), expected, strict=True):
                assert torch.equal(value, wanted)
    return f"killed after {seconds:.3f} s: {left}"


def _write_and_read(folder: Path) -> None:
    while True:
        wrapped = inference(folder)
        wrapped(*batch())
        wrapped.save(folder / "exported", export_model=False)
        other = inference()
        other.loadExecutable(folder / "exported")
        other(*batch())
        for path in folder.glob("*.executable"):
            path.unlink()
