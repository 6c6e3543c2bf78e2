"""Notable facts of a report, in plain sentences with numbers.

The sentences use the values of the page (`view_model.py`), so that readers find each number there.
Values that are not known get no sentence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from poptorch_emu.machine.ipu import KIB
from poptorch_emu.report.terms import in_sentence

# A tile that is fuller than this share gets a warning.
_NEARLY_FULL = 0.9


def insights(
    report: Mapping[str, Any],
    advice: Sequence[Mapping[str, Any]] = (),
    refusals: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Returns sentences about a report: problems, then advice in its order, then other sentences.

    Args:
        report: value of `view_model.view_model`, with or without insights.
        advice: suggested changes, in the form of the result.
        refusals: things that a real system refuses, in the form of the result; they come first.

    Returns:
        one `{"kind": "problem" | "warning" | "good" | "note", "text": ..., "code": ...}` for each
        sentence; "code" holds lines to paste, or is None. *modelled*
    """
    too_full, of_memory = _of_memory(report)
    facts = [*of_memory, *_of_operations(report), *_of_speed(report)]
    return [*map(dict, refusals), *map(_entry, too_full), *map(dict, advice), *map(_entry, facts)]


def _entry(insight: Insight) -> dict[str, Any]:
    kind, text = insight
    return {"kind": kind, "text": text, "code": None}


Insight = tuple[str, str]


def _of_memory(report: Mapping[str, Any]) -> tuple[list[Insight], list[Insight]]:
    """Returns sentences on tiles that hold too much, and other sentences on memory."""
    too_full, others = list[Insight](), list[Insight]()
    known = [ipu for ipu in report["ipus"] if ipu["fullest_tile_bytes"] and ipu["limit_bytes"]]
    for ipu in known:
        need, limit = ipu["fullest_tile_bytes"], ipu["limit_bytes"]
        if need > limit:
            text = (
                f"IPU {ipu['ipu']} needs {need / KIB:,.0f} KiB on its fullest tile, "
                f"{(need - limit) / KIB:,.0f} KiB more than the {limit / KIB:,.0f} KiB there are."
            )
            least = (ipu["likely_tile_bytes"] or [need])[0]
            if least <= limit:
                text += (
                    f" It may fit, because the need is uncertain: {least / KIB:,.0f} KiB or more."
                )
            too_full.append(("problem", text + _largest_category(report, ipu["ipu"])))
        elif need > _NEARLY_FULL * limit:
            text = (
                f"The fullest tile of IPU {ipu['ipu']} is {need / limit:.1%} full: "
                f"{(limit - need) / KIB:,.0f} KiB are left."
            )
            others.append(("warning", text))
    if known and not too_full and not others:
        most = max(known, key=lambda ipu: ipu["fullest_tile_bytes"] / ipu["limit_bytes"])
        share = most["fullest_tile_bytes"] / most["limit_bytes"]
        text = f"The model fits: the fullest tile, on IPU {most['ipu']}, is {share:.1%} full."
        others.append(("good", text))
    return too_full, others


def _largest_category(report: Mapping[str, Any], ipu: int) -> str:
    for memory in report["memory"]["ipus"]:
        if memory["ipu"] == ipu and memory["categories"]:
            largest = max(memory["categories"], key=lambda row: row["bytes"])
            kib = f"{largest['bytes'] / KIB:,.0f} KiB"
            return f" The largest part, {kib}, is {in_sentence(largest['name'])}."
    return ""


def _of_operations(report: Mapping[str, Any]) -> Iterator[Insight]:
    columns = report["operations"]
    if not columns:
        return
    cycles: Sequence[float | None] = columns["cycles"]
    known = {at: number for at, number in enumerate(cycles) if number is not None}
    total = sum(known.values())
    if total:
        yield from _of_known_operations(columns, known, total)
    if len(known) < len(cycles):
        yield (
            "note",
            f"The cost of {len(cycles) - len(known):,} of {len(cycles):,} operations is not known; "
            "shares count known costs only.",
        )


def _of_known_operations(
    columns: Mapping[str, Sequence[Any]], known: Mapping[int, float], total: float
) -> Iterator[Insight]:
    families: dict[str, float] = defaultdict(float)
    for at, number in known.items():
        families[columns["family"][at]] += number
    family = max(families, key=lambda name: families[name])
    yield (
        "note",
        f"Operations of the family '{family}' take {families[family] / total:.1%} of the cycles.",
    )
    slowest = max(known, key=lambda at: known[at])
    place = columns["source"][slowest]
    yield (
        "note",
        f"The slowest operation is {columns['name'][slowest]} in {columns['segment'][slowest]}"
        + (f" ({place})" if place else "")
        + f", with {known[slowest] / total:.1%} of the cycles.",
    )


def _of_speed(report: Mapping[str, Any]) -> Iterator[Insight]:
    speed = report["speed"]
    predicted, measured = speed["predicted_rows_per_second"], speed["measured_rows_per_second"]
    if predicted and measured:
        yield (
            "note",
            f"Real IPUs are predicted to process {predicted:,.0f} rows a second, "
            f"{predicted / measured:,.1f} × as many as the engine did on this computer.",
        )
    elif not predicted:
        yield ("note", "The throughput cannot be predicted: too many costs are unknown.")
