"""What limits a step, in words."""

from __future__ import annotations

from collections.abc import Sequence

from poptorch_emu.plan.time.time_plan import Bottleneck, Limit, SpreadWeight

_PARTS = {
    "compute_cycles": "computing",
    "exchange_cycles": "exchange between tiles",
    "sync_cycles": "starting programs",
    "link_cycles": "copies from other IPUs",
    "stash_cycles": "copies of stashes",
    "remote_cycles": "streaming memory",
    "reduce_cycles": "parts that other replicas hold",
    "host_cycles": "waiting for the host",
}


def bottleneck_text(found: Bottleneck) -> str:
    """Returns what limits a step, and what to change first."""
    share = f"{found.share:.0%}"
    if found.limit is Limit.HOST:
        return "the host's own work: load data faster"
    if found.limit is Limit.UPDATE:
        return f"the update ({share} of the time): accumulate more micro-batches"
    if found.limit is Limit.RAMP:
        return f"filling and emptying the pipeline ({share}): accumulate more micro-batches"
    if found.limit is Limit.NO_OVERLAP:
        return "one IPU works at a time: use a pipeline"
    if found.weight is not None:
        taken = f"{share} of IPU {found.ipu}'s time"
        return f"the gradient of a weight ({taken}): {spread_weight_text(found.weight)}"
    assert found.part is not None, "the slowest IPU spends its time in some part"
    lead = "" if found.load is None else f", which takes {found.load:.2f} times the mean"
    return f"IPU {found.ipu}{lead}: {share} of its time is {_PARTS[found.part]}"


def spread_weight_text(weight: SpreadWeight) -> str:
    """Returns what is wrong with a trained weight that several IPUs use, and what to do."""
    return (
        f"IPUs {listed([str(ipu) for ipu in weight.ipus])} use the weight {weight.name}, which a "
        "real system refuses; put all its uses on one IPU"
    )


def listed(words: Sequence[str]) -> str:
    """Returns words as a list in a sentence."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
