"""What limits a step, in words."""

from __future__ import annotations

from poptorch_emu.plan.time.time_plan import ActionTime, StageTime
from poptorch_emu.plan.time.window import Window

# From this share of the time on a cause is named before the slowest stage.
_LARGE_SHARE = 0.3


def bottleneck_of(
    window: Window,
    stages: tuple[StageTime, ...],
    update_seconds: float,
    window_seconds: float,
    waits_for_host: bool,
) -> str:
    """Returns what to change first.

    Args:
        window: of micro-batches.
        stages: what each takes.
        update_seconds: of one window.
        window_seconds: of it all.
        waits_for_host: whether the host's own work outlasts that of the device.
    """
    if waits_for_host:
        return "the host's own work: load data faster"
    if update_seconds > _LARGE_SHARE * window_seconds:
        share = update_seconds / window_seconds
        return f"the update ({share:.0%} of the time): accumulate more micro-batches"
    ramp = window.num_ramp_slots / window.num_slots
    if ramp > _LARGE_SHARE:
        return f"filling and emptying the pipeline ({ramp:.0%}): accumulate more micro-batches"
    if not window.is_pipelined and window.num_stages > 1:
        return "one IPU works at a time: use a pipeline"
    work: dict[int, float] = {}
    for stage in stages:
        work[stage.ipu] = work.get(stage.ipu, 0.0) + stage.cycles
    ipu = max(work, key=lambda number: work[number])
    part, share = _largest_part([stage for stage in stages if stage.ipu == ipu])
    mean = sum(work.values()) / len(work)
    lead = f", which takes {work[ipu] / mean:.2f} times the mean" if len(work) > 1 else ""
    return f"IPU {ipu}{lead}: {share:.0%} of its time is {part}"


_PARTS = {
    "compute_cycles": "computing",
    "exchange_cycles": "exchange between tiles",
    "sync_cycles": "starting programs",
    "link_cycles": "copies from other IPUs",
    "stash_cycles": "copies of stashes",
    "remote_cycles": "streaming memory and other replicas",
    "host_cycles": "waiting for the host",
}


def _largest_part(stages: list[StageTime]) -> tuple[str, float]:
    actions: list[ActionTime] = [a for s in stages for a in (s.forward, s.backward)]
    sums = {name: sum(getattr(action, name) for action in actions) for name in _PARTS}
    total = sum(sums.values()) or 1.0
    largest = max(sums, key=lambda name: sums[name])
    return _PARTS[largest], sums[largest] / total
