"""Computes the plan of time from the segments, the pipeline, the updates and the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from poptorch_emu.ir.control import HOST_CALL
from poptorch_emu.machine.costs.cost import Evidence
from poptorch_emu.machine.links import POD_IPUS
from poptorch_emu.machine.time_numbers import EVIDENCE
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.time.durations import Durations
from poptorch_emu.plan.time.ipu_times import ipu_times
from poptorch_emu.plan.time.spread_weights import spread_weights
from poptorch_emu.plan.time.step_parts import Part
from poptorch_emu.plan.time.time_plan import (
    HostWork,
    OperationTime,
    StageTime,
    TimePlan,
    UpdateTime,
)
from poptorch_emu.plan.time.update_durations import update_times
from poptorch_emu.plan.time.window import Window
from poptorch_emu.schedule.make import ScheduleKind
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig

# If operations of unknown cost exceed the first share of a stage, the plan is rough; if they exceed
# the second one, it has no throughput.
_ROUGH_SHARE, _UNKNOWN_SHARE = 0.05, 0.2


@dataclass(frozen=True)
class Run:
    """The properties of a run that do not depend on the segments of a replica.

    Attributes:
        kind: kind of the schedule; None if the inventory's schedule is a table.
        num_micro_batches: number of micro-batches in a window.
        optimizer: configuration of the optimiser; None in inference.
        host: work of the user's program meanwhile; None if it takes no time.
        name: name of the table; "" if the schedule is not a table.
    """

    kind: ScheduleKind | None
    num_micro_batches: int
    optimizer: OptimizerConfig | None = None
    host: HostWork | None = None


def plan_time(durations: Durations, run: Run) -> TimePlan:
    """Returns the plan of time of a step.

    Args:
        durations: durations of the segments; their inventory may count fewer micro-batches.
        run: schedule, optimiser and host work of the run.
    """
    inventory, clock = durations.inventory, durations.system.chip.clock_hz
    stages, window = durations.stages, _window(inventory, run)
    cycles_of = _cycles_of(stages)
    updates = update_times(durations, run.optimizer) if run.optimizer is not None else ()
    update_cycles = max((update.cycles for update in updates), default=0.0)
    window_seconds = (window.cycles(cycles_of) + update_cycles) / clock
    num_windows = inventory.config.device_iterations if window.is_training else 1
    samples = num_windows * run.num_micro_batches * _rows(inventory)
    device_seconds = num_windows * window_seconds + durations.numbers.call_seconds
    host_seconds = run.host.seconds(samples, num_windows) if run.host is not None else 0.0
    if inventory.config.machine.is_prefetched:
        step_seconds = max(device_seconds, host_seconds)
    else:
        step_seconds = device_seconds + host_seconds
    segments = durations.operations.values()
    unknown_shares = (_share((op for op in ops if not op.is_known), ops) for ops in segments)
    unknown_share = max(unknown_shares, default=0.0)
    throughput = samples / step_seconds if unknown_share <= _UNKNOWN_SHARE else None
    num_ipus = inventory.config.replication_factor * durations.ipus_per_replica
    scale, ids = num_windows / clock, inventory.placed.ipu_ids
    outside = {
        Part.CALL: durations.numbers.call_seconds,
        Part.DATA: step_seconds - device_seconds,
    }
    return TimePlan(
        system=durations.system.name,
        chip=durations.system.chip.name,
        clock_hz=clock,
        num_replicas=inventory.config.replication_factor,
        step_seconds=step_seconds,
        window_seconds=window_seconds,
        num_windows=num_windows,
        is_unusual=durations.system.card is not None or num_ipus > POD_IPUS,
        samples_per_step=samples,
        throughput=throughput,
        cycles=round(step_seconds * clock),
        spread_weights=tuple(
            replace(each, share=scale * run.num_micro_batches * each.cycles / step_seconds)
            for each in spread_weights(durations)
        ),
        unknown=_unknown(durations),
        rough=tuple(_rough(durations, unknown_share)),
        assumptions=tuple(_assumptions(durations, run)),
        evidence=_evidence(durations, updates).value,
        stages=stages,
        updates=updates,
        ipus=tuple(ipu_times(window, stages, updates, ids, scale, outside)),
        grid=replace(window, slot_cycles=window.length_of_slots(cycles_of)),
        all_operations=tuple(op for ops in durations.operations.values() for op in ops),
    )


def _window(inventory: Inventory, run: Run) -> Window:
    schedule = inventory.schedule
    return Window(
        run.kind,
        schedule.ipu_of_stage,
        schedule.level_of_stage,
        run.num_micro_batches,
        schedule.is_training,
        schedule if run.kind is None else None,
        inventory.config.strategy.table,
    )


def _rows(inventory: Inventory) -> int:
    """Returns the rows of a micro-batch, summed over the replicas that read different rows.

    A model without inputs counts micro-batches instead.
    """
    config = inventory.config
    rows = 1 if inventory.rows is None else inventory.rows
    return rows * config.num_input_groups * config.num_processes


def _cycles_of(stages: tuple[StageTime, ...]) -> Callable[[Port], float]:
    return lambda port: stages[port[1]].of(port[0]).cycles


def _share(some: Iterable[OperationTime], ops: Iterable[OperationTime]) -> float:
    """Returns the share of the cycles of `ops` that `some` of them take."""
    total = math.fsum(op.cycles for op in ops)
    return math.fsum(op.cycles for op in some) / total if total else 0.0


def _unknown(durations: Durations) -> tuple[tuple[str, float], ...]:
    """Returns the operators without a model, each with its largest share of a segment."""
    shares: dict[str, float] = {}
    for ops in durations.operations.values():
        unknown = [op for op in ops if not op.is_known]
        for name in dict.fromkeys(op.operator for op in unknown):
            share = _share((op for op in unknown if op.operator == name), ops)
            shares[name] = max(share, shares.get(name, 0.0))
    return tuple(sorted(shares.items(), key=lambda pair: -pair[1]))


def _rough(durations: Durations, unknown_share: float) -> list[str]:
    """Returns sentences that say why the figures are rough."""
    found = []
    if unknown_share > _ROUGH_SHARE:
        found.append(f"operators without a model take up to {unknown_share:.0%} of a segment")
    for port, operations in durations.operations.items():
        share = _share((op for op in operations if op.is_rough), operations)
        if share > _ROUGH_SHARE:
            name = durations.inventory.cut.segments[port].name
            kinds = sorted({op.family for op in operations if op.is_rough})
            found.append(f"{share:.0%} of {name} is {', '.join(kinds)}, modelled roughly")
    return found


def _assumptions(durations: Durations, run: Run) -> list[str]:
    """Returns sentences that state the assumptions of the plan."""
    found = []
    if run.host is None:
        found.append(
            "the host's own work (loading data, Python) takes no time; io=HostWork(...) counts it"
        )
    elif run.host.is_measured:
        rate = f"{run.host.items_per_second:,.0f} rows/s"
        found.append(f"the host loads {rate}, as measured on this computer")
    if not durations.inventory.config.machine.is_prefetched:
        found.append("inputs are not prefetched, so IPUs and host wait for each other")
    for node in durations.inventory.graph.operations:
        if node.target is HOST_CALL:
            found.append(f"the host function {node.args[0]} takes no time: its duration is unknown")
    if any(op.is_collective for ops in durations.operations.values() for op in ops):
        found.append("all replicas reach each exchange between them at the same time")
    if durations.system.num_ipus < durations.ipus_per_replica * (
        durations.inventory.config.replication_factor
    ):
        found.append(
            f"there are IPUs for all replicas, although {durations.system.name} has too few"
        )
    return found


def _evidence(durations: Durations, updates: tuple[UpdateTime, ...]) -> Evidence:
    """Returns the kind of evidence of the weakest number that the plan uses."""
    actions = [a for stage in durations.stages for a in stage.parts]
    used = {
        "call_seconds": True,
        "host_bytes_per_second": any(a.host_cycles for a in actions),
        "ladder_bytes_per_second": any(a.link_cycles for a in actions),
        "remote_bytes_per_second": any(a.remote_cycles for a in actions)
        or any(update.remote_cycles for update in updates),
        "hop_seconds": any(a.reduce_cycles for a in actions)
        or any(update.reduce_cycles for update in updates),
    }
    of_operations = {op.evidence for ops in durations.operations.values() for op in ops}
    found = [EVIDENCE[name] for name, is_used in used.items() if is_used]
    return max(*found, *map(Evidence, of_operations), Evidence.PUBLISHED)
