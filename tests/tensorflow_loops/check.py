"""Compares a small program on the IPU with TensorFlow's results, which a file holds."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow_loops.bench import Bench, DeviceBench, results_of
from tensorflow_loops.programs import PROGRAMS

GOLDEN = Path(__file__).parents[1] / "golden" / "tensorflow_loops.json"
# Programs of up to six updates; both sides add up in another order.
_RELATIVE, _ABSOLUTE = 2e-4, 2e-5
_OF_HALVES = 2e-3


def difference(name: str, wanted: list[dict[str, Any]], bench: DeviceBench) -> str:
    """Returns how a program differs from TensorFlow; empty if it does not."""
    program = PROGRAMS[name]
    try:
        found = results_of(program, bench)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if program.refused and re.search(program.refused, text):
            return ""
        return f"{name} raises {text[:600]}"
    if program.refused:
        return f"{name} runs, but is expected to be refused"
    if len(found) != len(wanted):
        return f"{name} has {len(found)} results, TensorFlow has {len(wanted)}"
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        text = _compared(one, np.array(other["values"], other["type"]).reshape(other["shape"]))
        if text:
            return f"{name} result {number}: {text}"
    return ""


def _compared(found: np.ndarray, wanted: np.ndarray) -> str:
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return f"{found.dtype}{found.shape}, TensorFlow has {wanted.dtype}{wanted.shape}"
    near = _OF_HALVES if found.dtype == np.float16 else _RELATIVE
    if np.issubdtype(found.dtype, np.inexact):
        is_equal = np.allclose(found, wanted, rtol=near, atol=_ABSOLUTE, equal_nan=True)
    else:
        is_equal = np.array_equal(found, wanted)
    return "" if is_equal else f"{found.tolist()}, TensorFlow has {wanted.tolist()}"


def write_golden(names: Sequence[str]) -> None:
    """Runs programs on TensorFlow, and stores their results; without names, all programs."""
    found = golden() if names else {}
    for name in names or [name for name, each in PROGRAMS.items() if not each.refused]:
        found[name] = [
            {"type": x.dtype.name, "shape": list(x.shape), "values": x.reshape(-1).tolist()}
            for x in results_of(PROGRAMS[name], Bench())
        ]
    lines = [f'"{name}": {json.dumps(each)}' for name, each in sorted(found.items())]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def golden() -> dict[str, list[dict[str, Any]]]:
    """Returns TensorFlow's results, by the names of the programs."""
    return json.loads(GOLDEN.read_text())  # type: ignore[no-any-return]
