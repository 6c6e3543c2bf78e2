"""What limits a step."""

from __future__ import annotations

from poptorch_emu.plan.time.time_plan import (
    ActionTime,
    Bottleneck,
    Limit,
    SpreadWeight,
    StageTime,
    work_by_ipu,
)
from poptorch_emu.plan.time.window import Window

# From this share of the time on a cause is named before the slowest stage.
_LARGE_SHARE = 0.3
# Without recomputation, which is a part of the first three.
_PARTS = (
    "compute_cycles",
    "exchange_cycles",
    "sync_cycles",
    "link_cycles",
    "stash_cycles",
    "remote_cycles",
    "reduce_cycles",
    "host_cycles",
)


def bottleneck_of(
    window: Window,
    stages: tuple[StageTime, ...],
    update_seconds: float,
    window_seconds: float,
    waits_for_host: bool,
    spread: tuple[SpreadWeight, ...],
) -> Bottleneck:
    """Returns what to change first.

    Args:
        window: of micro-batches.
        stages: what each takes.
        update_seconds: of one window.
        window_seconds: of it all.
        waits_for_host: whether the host's own work outlasts that of the device.
        spread: trained weights that several IPUs read.
    """
    if waits_for_host:
        return Bottleneck(Limit.HOST)
    slowest = _slowest_ipu(stages)
    if spread:
        share = spread[0].cycles / work_by_ipu(stages)[spread[0].ipus[0]]
        if slowest.ipu == spread[0].ipus[0] and share > _LARGE_SHARE:
            return Bottleneck(Limit.SPREAD_WEIGHT, share, spread[0].ipus[0], weight=spread[0])
    if update_seconds > _LARGE_SHARE * window_seconds:
        return Bottleneck(Limit.UPDATE, update_seconds / window_seconds)
    ramp = window.ramp_share(lambda port: stages[port[1]].of(port[0]).cycles)
    if ramp > _LARGE_SHARE:
        return Bottleneck(Limit.RAMP, ramp)
    if not window.is_pipelined and window.num_stages > 1:
        return Bottleneck(Limit.NO_OVERLAP)
    return slowest


def _slowest_ipu(stages: tuple[StageTime, ...]) -> Bottleneck:
    work = work_by_ipu(stages)
    ipu = max(work, key=lambda number: work[number])
    part, share = _largest_part([stage for stage in stages if stage.ipu == ipu])
    load = work[ipu] * len(work) / sum(work.values()) if len(work) > 1 else None
    return Bottleneck(Limit.SLOWEST_IPU, share, ipu, load, part)


def _largest_part(stages: list[StageTime]) -> tuple[str, float]:
    actions: list[ActionTime] = [a for s in stages for a in s.parts]
    sums = {name: sum(getattr(action, name) for action in actions) for name in _PARTS}
    largest = max(sums, key=lambda name: sums[name])
    return largest, sums[largest] / (sum(sums.values()) or 1.0)
