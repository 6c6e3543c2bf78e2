"""The content of a laboratory page: benches with a plan for each choice, as plain values."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from poptorch_emu.compile.planner import Planned
from poptorch_emu.plan.time.step_parts import Group
from poptorch_emu.report.bottleneck_text import bottleneck_text
from poptorch_emu.report.formulas import formulas_of
from poptorch_emu.report.page.view_timeline import machine_timeline
from poptorch_emu.schedule.free_run import unit_lengths

_WAITS = (Group.HOST, Group.WAIT)
# Points that are compressed together: more are smaller on disk, but take longer to open.
_POINTS_OF_CHUNK = 32


def bench_view(
    title: str,
    settings: Mapping[str, Sequence[object]],
    start: Sequence[int],
    points: Iterable[tuple[Sequence[int], Mapping[str, Any]]],
    task: str = "",
) -> dict[str, Any]:
    """Returns the content of one bench: its settings, and a point for each choice of them.

    Args:
        title: title of the bench.
        settings: possible values of each setting.
        start: index of the value that is chosen at first, for each setting.
        points: indices of the values of a choice, and its point.
        task: task of an exercise; "" without an exercise.
    """
    places: list[int] = []

    def noted() -> Iterator[Mapping[str, Any]]:
        for indices, point in points:
            places.append(_place(indices, list(map(len, settings.values()))))
            yield point

    shown = noted()
    chunks = []
    while chunk := list(islice(shown, _POINTS_OF_CHUNK)):
        chunks.append(packed(chunk))
    return {
        "title": title,
        "task": task,
        "settings": [
            {
                "name": name,
                "values": [str(value) for value in values],
                "codes": [_code(value) for value in values],
                "is_number": all(type(value) in (int, float) for value in values),
            }
            for name, values in settings.items()
        ],
        "start": list(start),
        "chunk_size": _POINTS_OF_CHUNK,
        "places": places,
        "chunks": chunks,
    }


def _code(value: object) -> str:
    """Returns a value as Python writes it, with double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _place(indices: Sequence[int], sizes: Sequence[int]) -> int:
    """Returns the number of a choice among all; the last setting varies fastest."""
    place = 0
    for index, size in zip(indices, sizes, strict=True):
        place = place * size + index
    return place


def packed(values: Sequence[Mapping[str, Any]]) -> str:
    """Returns values as JSON, compressed by gzip, in base64; `unpacked` reads it."""
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    data = gzip.compress(text.encode(errors="backslashreplace"), mtime=0)
    return base64.b64encode(data).decode()


def unpacked(bench: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Returns the points of a bench by the numbers of their choices."""
    chunks = (json.loads(gzip.decompress(base64.b64decode(text))) for text in bench["chunks"])
    points = (point for chunk in chunks for point in chunk)
    return dict(zip(bench["places"], points, strict=True))


def point_of(plan: Planned | str, code: str = "") -> dict[str, Any]:
    """Returns the figures of a plan, or the reason why a choice has none.

    Args:
        plan: plan of the choice, or the reason.
        code: lines of a program that has the same settings.
    """
    if isinstance(plan, str):
        return {"fault": plan}
    time, tiles = plan.time, plan.tiles
    window = time.grid
    return {
        "fault": None,
        "clock_hz": time.clock_hz,
        "rows_per_second": time.throughput,
        "likely_rows_per_second": None if time.speed is None else list(time.speed.interval),
        "step_seconds": time.step_seconds,
        "rows_per_step": time.samples_per_step,
        "num_ipus": len(time.ipus) * time.num_replicas,
        "num_micro_batches": time.grid.num_micro_batches,
        "shares": {part.word: share for part, share in time.shares.items() if share},
        "waits": waiting_share(plan),
        "bubble": window.bubble(time.cycles_of),
        "bubble_if_alike": window.bubble(unit_lengths),
        "reduce_seconds": max((u.reduce_cycles for u in time.updates), default=0) / time.clock_hz,
        "fits": tiles.worst_verdict,
        "limit_bytes": tiles.chip.tile_bytes,
        "fullest_bytes": [[ipu.ipu, tiles.largest_bytes(ipu)] for ipu in tiles.ipus],
        "likely_fullest_bytes": [[ipu.ipu, *tiles.fullest(ipu).interval] for ipu in tiles.ipus],
        "parts": [
            {name: size for name, size in tiles.parts(ipu).items() if size} for ipu in tiles.ipus
        ],
        "stash_bytes": max(dict(ipu.always_live).get("stash", 0) for ipu in tiles.ipus),
        "limited_by": bottleneck_text(time),
        "formulas": [
            {
                "name": each.name,
                "place": each.place,
                "value": each.value,
                "result": each.result,
                "words": each.words,
                "numbers": each.numbers,
            }
            for each in formulas_of(plan)
        ],
        "code": code,
        "timeline": machine_timeline(time, None),
    }


def waiting_share(plan: Planned) -> float:
    """Returns the share of a call that IPUs wait for each other or for the host."""
    return sum(share for part, share in plan.time.shares.items() if part.group in _WAITS)
