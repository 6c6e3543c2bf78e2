"""Checks the values of a report for its readers: pages, summaries and `pva`.

A report file may come from anybody. Each entry that `view_model.py` adds for a reader needs its
type here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from poptorch_emu.untrusted.json_types import AMOUNT, COUNT, NUMBER, Kind, type_fault

_SOME_TEXT = (str, None)
_UNIT = Kind("'cycles' or 'seconds'", lambda value: value in ("cycles", "seconds"))
_VERDICT = Kind("'yes', 'close' or 'no'", lambda value: value in ("yes", "close", "no"))
_INFINITE = Kind("'infinite'", lambda value: value == "infinite")
_LABEL = {"name": str, "source": _SOME_TEXT}
_TIMELINE: dict[str, Any] = {
    "key": _UNIT,
    "title": str,
    "note": str,
    "unit": _UNIT,
    "lanes": [str],
    "kinds": [str],
    "labels": [_LABEL],
    "columns": {
        "lane": [COUNT],
        "start": [AMOUNT],
        "duration": [AMOUNT],
        "kind": [COUNT],
        "label": [COUNT],
        "micro_batch": [(NUMBER, None)],
        "bytes": [(COUNT, None)],
    },
    "spans": [{"name": str, "start": NUMBER, "end": NUMBER}],
    "num_left_out": COUNT,
}
_OPERATIONS = {
    "name": [str],
    "operator": [str],
    "segment": [_SOME_TEXT],
    "block": [_SOME_TEXT],
    "module": [_SOME_TEXT],
    "family": [_SOME_TEXT],
    "ipu": [(COUNT, None)],
    "cycles": [(AMOUNT, None)],
    "bytes": [(COUNT, None)],
    "utilisation": [(AMOUNT, None)],
    "is_recomputed": [bool],
    "source": [_SOME_TEXT],
}
_STEPS = {
    "names": [str],
    "direction": [str],
    "block": [str],
    "always": [NUMBER],
    "live": [NUMBER],
    "largest": [[[COUNT, NUMBER]]],
}
_FULLEST_TILE = {
    "name": [str],
    "part": [str],
    "block": [str],
    "tile_bytes": [COUNT],
    "ipu_bytes": [(COUNT, None)],
}
_MEMORY_OF_IPU: dict[str, Any] = {
    "ipu": COUNT,
    "limit_bytes": COUNT,
    "fullest_tile_bytes": COUNT,
    "fullest_tile": (_FULLEST_TILE, None),
    "steps": (_STEPS, None),
    "live_names": [str],
    "peak": {"name": _SOME_TEXT, "tensors": [{"name": str, "bytes": NUMBER}]},
    "tiles": ({str: [[COUNT, COUNT]]}, None),
    "categories": [{"name": str, "bytes": NUMBER, "live": str}],
}
_WAY_OUT = {
    "name": str,
    "saves_bytes": NUMBER,
    "then_bytes": NUMBER,
    "slower": (NUMBER, None),
    "text": _SOME_TEXT,
}
_STAGE = {
    "name": str,
    "direction": str,
    "stage": COUNT,
    "ipu": COUNT,
    "blocks": [str],
    "cycles": (AMOUNT, None),
    "num_operations": COUNT,
}
_EDGE = {
    "from": str,
    "to": str,
    "bytes": COUNT,
    "tensors": [{"name": str, "shape": str, "bytes": COUNT}],
}
_NUMBERS: dict[str, Any] = {
    "sentences": [str],
    "suggestions": [str],
    "notes": [str],
    "type": {"name": str, "zero": NUMBER, "normal": NUMBER, "overflow": NUMBER},
    "loss_scaling": NUMBER,
    "best": (NUMBER, None),
    "histograms": [{"name": str, "word": str, "bins": [[NUMBER, AMOUNT]]}],
    "scales": [[NUMBER, AMOUNT, AMOUNT]],
    "operations": {
        "name": [str],
        "module": [_SOME_TEXT],
        "direction": [str],
        "type": [str],
        "source": [_SOME_TEXT],
        "largest": [(AMOUNT, None)],
        "smallest": [(AMOUNT, None)],
        "overflow": [AMOUNT],
        "flushed": [AMOUNT],
        "subnormal": [AMOUNT],
        "error": [(AMOUNT, _INFINITE, None)],
    },
}
_REPORT: dict[str, Any] = {
    "name": str,
    "mode": str,
    "written": _SOME_TEXT,
    "versions": [[str, str]],
    "machine": {
        "system": _SOME_TEXT,
        "chip": _SOME_TEXT,
        "num_ipus": (COUNT, None),
        "num_replicas": COUNT,
        "num_tiles": (COUNT, None),
        "num_compute_tiles": (COUNT, None),
        "clock_hz": (AMOUNT, None),
        "tile_bytes": (COUNT, None),
    },
    "facts": [[str, str]],
    "fits": (bool, None),
    "verdict": (_VERDICT, None),
    "speed": {
        "predicted_rows_per_second": (AMOUNT, None),
        "likely_rows_per_second": ([AMOUNT], None),
        "spread_weights": ([[AMOUNT]], None),
        "predicted_step_seconds": (AMOUNT, None),
        "measured_rows_per_second": (AMOUNT, None),
        "measured_step_seconds": (AMOUNT, None),
        "rows_per_step": (COUNT, None),
    },
    "bottleneck": _SOME_TEXT,
    "ipus": [
        {
            "ipu": COUNT,
            "fullest_tile_bytes": (COUNT, None),
            "likely_tile_bytes": ([AMOUNT], None),
            "mean_tile_bytes": (COUNT, None),
            "limit_bytes": (COUNT, None),
            "parts": ({str: AMOUNT}, None),
        }
    ],
    "timelines": [_TIMELINE],
    "memory": {
        "ipus": [_MEMORY_OF_IPU],
        "steps_note": str,
        "tiles_note": str,
        "fullest_note": str,
        "ways_out": [_WAY_OUT],
    },
    "operations": {str: list},
    "graph": {"stages": [_STAGE], "edges": [_EDGE]},
    "options": [[str, _SOME_TEXT, _SOME_TEXT]],
    "numbers": (_NUMBERS, None),
    "log": ([{"time": str, "level": str, "text": str}], None),
    "insights": [{"kind": str, "text": str, "code": _SOME_TEXT}],
}
# Limits above any real system, because `pva` makes lists with one entry for each lane and tile.
_MOST_LANES, _MOST_TILES = 2**12, 2**14


class ReportError(ValueError):
    """A file is not a report, is damaged, or has another version."""


@contextmanager
def refuses_damage(path: Path) -> Iterator[None]:
    """Turns any error of a file's readers into one type of error.

    Raises:
        ReportError: a reader failed; the message names the file.
    """
    try:
        yield
    except (OSError, ReportError):
        raise
    except Exception as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def damaged(path: Path, fault: str) -> ReportError:
    """Returns the error for a file that is no report or is damaged; the caller raises it."""
    return ReportError(
        f"{path} is no report of this version, or is damaged: {fault}. Write it anew with "
        "emulator.report, emulator.page or Options.enableProfiling."
    )


def check_report(report: Any, path: Path) -> None:
    """Checks the values of a report.

    Args:
        report: report as it was read.
        path: path of its file, for the message.

    Raises:
        ReportError: a value of the report has a wrong type or contradicts another one.
    """
    fault = _fault(report)
    if fault:
        raise damaged(path, fault)


def _fault(report: Any) -> str:
    fault = type_fault(report, _REPORT, "report")
    if fault:
        return fault
    operations = report["operations"]
    if operations:  # An empty table means that no operation is known.
        fault = type_fault(operations, _OPERATIONS, "report.operations")
        if fault or _are_uneven(operations):
            return fault or "the columns of operations differ in length"
    checks: tuple[tuple[str, Callable[[Any], Iterator[str]]], ...] = (
        ("timelines", _timeline_faults),
        ("ipus", _ipu_faults),
    )
    if report["numbers"] is not None and _are_uneven(report["numbers"]["operations"]):
        return "the columns of numbers differ in length"
    found = (text for section, check in checks for each in report[section] for text in check(each))
    of_memory = (text for each in report["memory"]["ipus"] for text in _memory_faults(each))
    return next(found, "") or next(of_memory, "") or _parts_fault(report["ipus"])


def _are_uneven(columns: Mapping[str, list[Any]]) -> bool:
    return len({len(column) for column in columns.values()}) > 1


def _timeline_faults(timeline: Mapping[str, Any]) -> Iterator[str]:
    columns, name = timeline["columns"], f"timeline {timeline['key']}"
    if _are_uneven(columns):
        yield f"the columns of {name} are not of one length"
    if len(timeline["lanes"]) > _MOST_LANES:
        yield f"{name} has {len(timeline['lanes'])} lanes"
    for column, names in (("lane", "lanes"), ("kind", "kinds"), ("label", "labels")):
        if max(columns[column], default=-1) >= len(timeline[names]):
            yield f"an event of {name} has an unknown {column}"


def _ipu_faults(ipu: Mapping[str, Any]) -> Iterator[str]:
    known = [ipu[name] is None for name in ("fullest_tile_bytes", "limit_bytes")]
    if len(set(known)) > 1:
        yield f"a part of the memory of IPU {ipu['ipu']} is missing"


def _parts_fault(ipus: list[Mapping[str, Any]]) -> str:
    names = {tuple(ipu["parts"]) for ipu in ipus if ipu["parts"]}
    return "the parts of a step are not the same for all IPUs" if len(names) > 1 else ""


def _memory_faults(memory: Mapping[str, Any]) -> Iterator[str]:
    name = f"the memory of IPU {memory['ipu']}"
    for table in ("steps", "fullest_tile"):
        if memory[table] is not None and _are_uneven(memory[table]):
            yield f"the columns of {name} are not of one length"
    largest = memory["steps"]["largest"] if memory["steps"] is not None else []
    live = [number for values in largest for number, _ in values]
    if max(live, default=-1) >= len(memory["live_names"]):
        yield f"{name} has a value without a name"
    counts = {sum(count for _, count in runs) for runs in (memory["tiles"] or {}).values()}
    if len(counts) > 1 or max(counts, default=0) > _MOST_TILES:
        yield f"{name} has {', '.join(map(str, sorted(counts)))} tiles"
