"""A report of a model as a value: its facts, memory, speed and bottleneck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poptorch_emu.machine.ipu import KIB
from poptorch_emu.printed.numbers import limits_text
from poptorch_emu.report.pictures import draw_limit, draw_stacks, draw_unknown, pyplot, set_title
from poptorch_emu.report.printed_report import PrintedReport, Table

_UNKNOWN = "not known"


@dataclass(frozen=True)
class ModelReport(PrintedReport):
    """All known facts about a model; unknown values are None or empty, never zero.

    Attributes:
        view: the sections of the report, by the names in `docs/profile_file.md`.
    """

    view: Mapping[str, Any]

    def _parts(self, columns: int) -> list[str | Table]:
        ipus = self.view["ipus"]
        tables = [Table(_ipu_rows(ipus), 1)] if ipus else []
        return [*self._facts(), *tables, *self._insights()]

    def plot(self, axes: Any = None) -> Any:
        """Draws the fullest tile of each IPU with its limit, and the parts of each IPU's step.

        Args:
            axes: two matplotlib axes to draw on; by default those of a new figure.

        Returns:
            the two axes.

        Raises:
            ImportError: matplotlib is not installed; it is the extra `report`.
        """
        ipus = self.view["ipus"]
        if axes is None:
            size = (8.0 + 0.5 * len(ipus), 4.0)
            _, axes = pyplot().subplots(1, 2, figsize=size, layout="constrained")
        memory, time = axes
        _draw_memory(memory, ipus)
        _draw_time(time, ipus)
        set_title(memory, f"{self.view['name']}: fullest tile")
        set_title(time, "a step")
        return axes

    def _facts(self) -> list[str]:
        view = self.view
        speed = view["speed"]
        facts = [
            ("model", f"{view['name']} ({view['mode']})"),
            ("machine", _machine(view["machine"])),
            ("fits", view["verdict"] or _UNKNOWN),
            ("predicted", _rate(speed, "predicted")),
            ("measured here", _rate(speed, "measured")),
            ("bottleneck", view["bottleneck"] or _UNKNOWN),
        ]
        return [f"{name}: {text}" for name, text in facts]

    def _insights(self) -> list[str]:
        lines = []
        for insight in self.view["insights"]:
            lines.append(f"{insight['kind']}: {insight['text']}")
            lines += [f"    {line}" for line in (insight["code"] or "").splitlines()]
        return lines


def _machine(machine: Mapping[str, Any]) -> str:
    system = machine["system"] or "system " + _UNKNOWN
    number, replicas = machine["num_ipus"], machine["num_replicas"]
    ipus = _UNKNOWN if number is None else f"{number}"
    return f"{system}, {replicas} x {ipus} {machine['chip'] or ''} IPUs".replace("  ", " ")


def _rate(speed: Mapping[str, Any], kind: str) -> str:
    rows_per_second = speed[f"{kind}_rows_per_second"]
    limits = speed["likely_rows_per_second"] if kind == "predicted" else None
    if rows_per_second is None:
        return _UNKNOWN
    likely = f", likely {limits_text(*limits)}" if limits else ""
    return f"{rows_per_second:,.1f} rows a second{likely}"


def _ipu_rows(ipus: list[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["", *(f"IPU {ipu['ipu']}" for ipu in ipus)]]
    for name, key in (("fullest tile KiB", "fullest_tile_bytes"), ("limit KiB", "limit_bytes")):
        rows.append([name, *(_kib(ipu[key]) for ipu in ipus)])
    rows.insert(2, ["likely", *(_limits_kib(ipu["likely_tile_bytes"]) for ipu in ipus)])
    return rows


def _draw_memory(axes: Any, ipus: list[Mapping[str, Any]]) -> None:
    known = [ipu for ipu in ipus if ipu["fullest_tile_bytes"] is not None]
    if not known:
        draw_unknown(axes, "memory of the tiles")
        return
    bars = [ipu["fullest_tile_bytes"] / KIB for ipu in known]
    draw_stacks(axes, [f"IPU {ipu['ipu']}" for ipu in known], {"fullest tile": bars})
    axes.set_ylabel("KiB")
    limit = known[0]["limit_bytes"] / KIB
    draw_limit(axes, limit, f"limit {limit:.0f} KiB")


def _draw_time(axes: Any, ipus: list[Mapping[str, Any]]) -> None:
    known = [ipu for ipu in ipus if ipu["parts"]]
    if not known:
        draw_unknown(axes, "how a step is spent")
        return
    parts = {part: [1e3 * ipu["parts"][part] for ipu in known] for part in known[0]["parts"]}
    draw_stacks(axes, [f"IPU {ipu['ipu']}" for ipu in known], parts)
    axes.set_ylabel("milliseconds, by the model of the machine")


def _limits_kib(limits: Sequence[float] | None) -> str:
    return _UNKNOWN if limits is None else limits_text(*(limit / KIB for limit in limits))


def _kib(num_bytes: int | None) -> str:
    return _UNKNOWN if num_bytes is None else f"{num_bytes / KIB:.0f}"
