"""Names the main cause of a step's duration, in the same words in all reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poptorch_emu.plan.time.causes import Cause, Loss, losses
from poptorch_emu.plan.time.time_plan import SpreadWeight, TimePlan

_NAMES: Mapping[Cause, str] = {
    Cause.HOST_DATA: "waiting for the host's own work",
    Cause.HOST_INPUT: "inputs from the host",
    Cause.HOST_OUTPUT: "results to the host",
    Cause.CALLS: "starting calls",
    Cause.STREAMING: "streaming memory",
    Cause.LINK: "data from other IPUs",
    Cause.IMBALANCE: "one slow stage",
    Cause.TURNS: "one IPU working at a time",
    Cause.RAMP: "filling and emptying the pipeline",
    Cause.UPDATE: "the update",
    Cause.ALL_REDUCE: "the all-reduce",
    Cause.RECOMPUTATION: "recomputation",
    Cause.LOW_PROPORTION: "a low memory proportion",
    Cause.SMALL_MICRO_BATCH: "small micro-batches",
    Cause.COMPUTE: "computing",
}


def bottleneck_text(plan: TimePlan) -> str:
    """Returns the first cause of a plan, its share of a step and, among several IPUs, its IPU."""
    found = losses(plan)
    if not found:
        return "nothing: a step takes no time"
    first = found[0]
    where = f" on {place_text(first)}" if len(plan.ipus) > 1 and _has_place(first.cause) else ""
    load = f", IPU {first.ipu} takes {first.load:.2f} times the mean"
    detail = load if first.cause is Cause.IMBALANCE else ""
    return f"{_NAMES[first.cause]} ({first.share:.0%} of a step{where}{detail})"


def place_text(loss: Loss) -> str:
    """Returns the IPU that loses the time, or the words for IPUs that lose it in turn."""
    return "one IPU after another" if loss.is_in_turn else f"IPU {loss.ipu}"


def _has_place(cause: Cause) -> bool:
    everywhere = (Cause.IMBALANCE, Cause.TURNS, Cause.RAMP, Cause.CALLS, Cause.HOST_DATA)
    return cause not in everywhere


def spread_weight_text(weight: SpreadWeight) -> str:
    """Returns a sentence on a trained weight that several IPUs use, and the remedy."""
    return (
        f"IPUs {listed([str(ipu) for ipu in weight.ipus])} use the weight {weight.name}, which a "
        "real system refuses; put all its uses on one IPU"
    )


def listed(words: Sequence[str]) -> str:
    """Returns words as a list within a sentence, such as "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
