"""What limits a step, in words."""

from __future__ import annotations

from poptorch_emu.plan.time.time_plan import Bottleneck, Limit

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
        ipus = " and ".join(map(str, found.weight.ipus))
        return (
            f"gradients of {found.weight.name}, which IPUs {ipus} read: {share} of IPU "
            f"{found.ipu}'s time; put all its uses on one IPU"
        )
    assert found.part is not None, "the slowest IPU spends its time in some part"
    lead = "" if found.load is None else f", which takes {found.load:.2f} times the mean"
    return f"IPU {found.ipu}{lead}: {share} of its time is {_PARTS[found.part]}"
