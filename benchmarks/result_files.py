"""Appends the rows of a run to a CSV file of `results/`, with workload, machine and date.

`make docs` generates the tables of docs/performance.md from these files.
"""

from __future__ import annotations

import csv
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import torch

_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}
_VECTORS = {"AVX512": "AVX-512"}


def append(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Appends rows to a CSV file with a header; figures that a row lacks stay empty.

    Raises:
        ValueError: a row has a column that the file lacks.
    """
    with path.open(newline="", encoding="utf-8") as file:
        header = next(csv.reader(file))
    for row in rows:
        if unknown := sorted(row.keys() - set(header)):
            raise ValueError(f"{path} has no column {', '.join(unknown)}; it has {header}.")
    measured = {name: text for name, text in _circumstances().items() if name in header}
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header, restval="", lineterminator="\n")
        for row in rows:
            writer.writerow({**measured, **{name: _text(value) for name, value in row.items()}})


def _text(value: object) -> str:
    """Returns a number with at least four digits, "" for nan, and other values as text."""
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _circumstances() -> dict[str, str]:
    describe = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(
        describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return {
        "date": date.today().isoformat(),
        "machine": _machine(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "commit": done.stdout.strip(),
        "torch": torch.__version__.partition("+")[0],
    }


def _machine() -> str:
    """Returns the processor's vendor and the vector width that PyTorch's kernels use on it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    vendors = [line.rpartition(" ")[2] for line in lines if line.startswith("vendor_id")]
    vendor = _VENDORS.get(vendors[0], vendors[0]) if vendors else platform.machine()
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{vendor} {_VECTORS.get(capability, capability)}"
