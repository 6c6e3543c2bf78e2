"""A report of a model as a value: what it is, what it holds, how fast it is, and why."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poptorch_emu.machine.ipu import KIB
from poptorch_emu.text_table import to_table

_WIDTH = 80
_UNKNOWN = "not known"
_PER_TABLE = 4  # IPUs: such a table fits 80 columns.


@dataclass(frozen=True)
class ModelReport:
    """All that is known about a model; what is not known is None or empty, never zero.

    Attributes:
        view: the sections of the report, by the names in `docs/profile_file.md`.
    """

    view: Mapping[str, Any]

    def __str__(self) -> str:
        """Returns the summary, in lines of at most 80 columns."""
        view = self.view
        fits = {True: "yes", False: "no", None: _UNKNOWN}[view["fits"]]
        speed = view["speed"]
        facts = [
            ("model", f"{view['name']} ({view['mode']})"),
            ("machine", _machine(view["machine"])),
            ("fits", fits),
            ("predicted", _rate(speed["predicted_rows_per_second"])),
            ("measured here", _rate(speed["measured_rows_per_second"])),
            ("bottleneck", view["bottleneck"] or _UNKNOWN),
        ]
        lines = [line for name, text in facts for line in _wrapped(f"{name}: {text}")]
        lines += _ipu_lines(view["ipus"])
        for insight in view["insights"]:
            lines += _wrapped(f"{insight['kind']}: {insight['text']}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Returns the summary for a notebook; names of the user are text, never markup."""
        return f"<pre>{html.escape(str(self))}</pre>"


def _machine(machine: Mapping[str, Any]) -> str:
    system = machine["system"] or "system " + _UNKNOWN
    number, replicas = machine["num_ipus"], machine["num_replicas"]
    ipus = _UNKNOWN if number is None else f"{number}"
    return f"{system}, {replicas} x {ipus} {machine['chip'] or ''} IPUs".replace("  ", " ")


def _rate(rows_per_second: float | None) -> str:
    return _UNKNOWN if rows_per_second is None else f"{rows_per_second:,.1f} rows a second"


def _ipu_lines(ipus: list[Mapping[str, Any]]) -> list[str]:
    lines = []
    for first in range(0, len(ipus), _PER_TABLE):
        some = ipus[first : first + _PER_TABLE]
        rows = [["", *(f"IPU {ipu['ipu']}" for ipu in some)]]
        for name, key in (("fullest tile KiB", "fullest_tile_bytes"), ("limit KiB", "limit_bytes")):
            rows.append([name, *(_kib(ipu[key]) for ipu in some)])
        lines += to_table(rows, num_left=1)
    return lines


def _kib(num_bytes: int | None) -> str:
    return _UNKNOWN if num_bytes is None else f"{num_bytes / KIB:.0f}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ")
