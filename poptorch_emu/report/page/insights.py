"""What stands out in a report, in plain sentences with numbers.

It reads the values that the page shows (`view_model.py`), so that each number of a sentence can be
found on the page. Nothing is said about what is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

KIB = 1024
_WAITING = ("host", "bubble")
# From these shares on something is worth a sentence; chosen so that a balanced pipeline is quiet.
_NEARLY_FULL = 0.9
_MUCH_WAITING = 0.15
_MUCH_OVERHEAD = 0.2
_UNEVEN = 1.15
_PART_SENTENCES = {
    "exchange": "Exchange between tiles takes {share} of the step; larger micro-batches or fewer "
    "reshapes would make it less.",
    "sync": "Starting programs takes {share} of the step: the operations are small for the "
    "machine. Larger micro-batches would make it less.",
    "streaming": "Streaming memory takes {share} of the step; keeping more on the chip would make "
    "it less.",
    "update": "Updating weights takes {share} of the step; more gradient accumulation would make "
    "it less.",
    "host": "IPUs wait for the host during {share} of the step; more device iterations or a "
    "faster loader would make it less.",
}


def insights(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns sentences about a report, problems first.

    Args:
        report: a value of `view_model.view_model`, with or without insights.

    Returns:
        one `{"kind": "problem" | "warning" | "good" | "note", "text": ...}` a sentence. *modelled*
    """
    found = [
        *_of_memory(report),
        *_of_balance(report),
        *_of_waiting(report),
        *_of_operations(report),
        *_of_speed(report),
    ]
    order = ("problem", "warning", "good", "note")
    return [{"kind": kind, "text": text} for kind in order for k, text in found if k == kind]


Insight = tuple[str, str]


def _of_memory(report: Mapping[str, Any]) -> Iterator[Insight]:
    known = [ipu for ipu in report["ipus"] if ipu["fullest_tile_bytes"] and ipu["limit_bytes"]]
    for ipu in known:
        need, limit = ipu["fullest_tile_bytes"], ipu["limit_bytes"]
        if need > limit:
            yield (
                "problem",
                f"IPU {ipu['ipu']} needs {need / KIB:,.0f} KiB on its fullest tile, "
                f"{(need - limit) / KIB:,.0f} KiB more than the {limit / KIB:,.0f} KiB there are."
                + _largest_category(report, ipu["ipu"])
                + _best_way_out(report),
            )
        elif need > _NEARLY_FULL * limit:
            yield (
                "warning",
                f"The fullest tile of IPU {ipu['ipu']} is {need / limit:.1%} full: "
                f"{(limit - need) / KIB:,.0f} KiB are left.",
            )
    if known and all(
        ipu["fullest_tile_bytes"] <= _NEARLY_FULL * ipu["limit_bytes"] for ipu in known
    ):
        most = max(known, key=lambda ipu: ipu["fullest_tile_bytes"] / ipu["limit_bytes"])
        share = most["fullest_tile_bytes"] / most["limit_bytes"]
        yield (
            "good",
            f"The model fits: the fullest tile, on IPU {most['ipu']}, is {share:.1%} full.",
        )


def _largest_category(report: Mapping[str, Any], ipu: int) -> str:
    for memory in report["memory"]["ipus"]:
        if memory["ipu"] == ipu and memory["categories"]:
            largest = max(memory["categories"], key=lambda row: row["bytes"])
            return f" The largest part is {largest['name']} with {largest['bytes'] / KIB:,.0f} KiB."
    return ""


def _best_way_out(report: Mapping[str, Any]) -> str:
    ways = [way for way in report["memory"]["ways_out"] if way["saves_bytes"]]
    if not ways:
        return ""
    best = max(ways, key=lambda way: way["saves_bytes"])
    return f" To {best['name']} would save {best['saves_bytes'] / KIB:,.0f} KiB."


def _of_balance(report: Mapping[str, Any]) -> Iterator[Insight]:
    busy = _busy_seconds(report)
    if len(busy) < 2 or not sum(busy.values()):
        return
    mean = sum(busy.values()) / len(busy)
    busiest = max(busy, key=lambda ipu: busy[ipu])
    ratio = busy[busiest] / mean
    if ratio < _UNEVEN:
        yield ("good", f"The IPUs share the work well: the busiest has {ratio:.2f} × the mean.")
        return
    text = f"IPU {busiest} is {ratio:.2f} × as busy as the mean of the IPUs"
    move = _best_move(report, busy, busiest)
    if move is None:
        yield ("warning", f"{text}.")
    else:
        block, target, after = move
        yield (
            "warning",
            f"{text}; moving block {block} to IPU {target} would bring the busiest to about "
            f"{after / mean:.2f} ×.",
        )


def _busy_seconds(report: Mapping[str, Any]) -> dict[int, float]:
    return {
        ipu["ipu"]: sum(time for part, time in ipu["parts"].items() if part not in _WAITING)
        for ipu in report["ipus"]
        if ipu["parts"]
    }


def _best_move(
    report: Mapping[str, Any], busy: Mapping[int, float], busiest: int
) -> tuple[str, int, float] | None:
    """Returns the block at an end of the busiest IPU whose move to a neighbour helps most.

    Returns:
        the block, the IPU where it would go, and how long the busiest IPU would then be busy; None
        if no move helps, or the blocks are not known.
    """
    stages = [stage for stage in report["graph"]["stages"] if stage["direction"] == "forward"]
    shares = _block_shares(report)
    best: tuple[str, int, float] | None = None
    for at, stage in enumerate(stages):
        if stage["ipu"] != busiest or len(stage["blocks"]) < 2:
            continue
        for block, neighbour in (
            (stage["blocks"][0], at - 1),
            (stage["blocks"][-1], at + 1),
        ):
            if not 0 <= neighbour < len(stages) or stages[neighbour]["ipu"] == busiest:
                continue
            target = stages[neighbour]["ipu"]
            seconds = shares.get((busiest, block), 0.0) * busy[busiest]
            after = {**busy, busiest: busy[busiest] - seconds, target: busy[target] + seconds}
            longest = max(after.values())
            if seconds and longest < (best[2] if best else busy[busiest]):
                best = (block, target, longest)
    return best


def _block_shares(report: Mapping[str, Any]) -> dict[tuple[int, str], float]:
    """Returns the share of each block in the cycles of its IPU's operations."""
    columns = report["operations"]
    of_block: dict[tuple[int, str], float] = defaultdict(float)
    of_ipu: dict[int, float] = defaultdict(float)
    if columns:
        for ipu, block, cycles in zip(
            columns["ipu"], columns["block"], columns["cycles"], strict=True
        ):
            of_block[ipu, block] += cycles or 0
            of_ipu[ipu] += cycles or 0
    return {key: cycles / of_ipu[key[0]] for key, cycles in of_block.items() if of_ipu[key[0]]}


def _of_waiting(report: Mapping[str, Any]) -> Iterator[Insight]:
    ipus = [ipu["parts"] for ipu in report["ipus"] if ipu["parts"]]
    total = sum(sum(parts.values()) for parts in ipus)
    if not total:
        return
    shares = {part: sum(parts[part] for parts in ipus) / total for part in ipus[0]}
    if shares.get("bubble", 0.0) >= _MUCH_WAITING:
        yield (
            "warning",
            f"{shares['bubble']:.1%} of the IPUs' time is spent waiting for other IPUs; more "
            "micro-batches in a window, or a more even split, would make it less.",
        )
    for part, sentence in _PART_SENTENCES.items():
        if shares.get(part, 0.0) >= _MUCH_OVERHEAD:
            yield ("warning", sentence.format(share=f"{shares[part]:.1%}"))


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
            "shares are of what is known.",
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
        f"Operations of family {family} take {families[family] / total:.1%} of the cycles.",
    )
    slowest = max(known, key=lambda at: known[at])
    place = columns["source"][slowest]
    yield (
        "note",
        f"The slowest operation is {columns['name'][slowest]} in {columns['segment'][slowest]}"
        + (f" ({place})" if place else "")
        + f", with {known[slowest] / total:.1%} of the cycles.",
    )
    again = sum(number for at, number in known.items() if columns["is_recomputed"][at])
    if again:
        yield ("note", f"Recomputing activations takes {again / total:.1%} of the cycles.")


def _of_speed(report: Mapping[str, Any]) -> Iterator[Insight]:
    speed = report["speed"]
    predicted, measured = speed["predicted_rows_per_second"], speed["measured_rows_per_second"]
    if predicted and measured:
        yield (
            "note",
            f"The machine is predicted to do {predicted:,.0f} rows a second, "
            f"{predicted / measured:,.1f} × what the engine did on this computer.",
        )
    elif not predicted:
        yield ("note", "Too much is unknown to predict a throughput.")
