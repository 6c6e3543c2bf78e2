"""Duration of the weight update on each IPU of a replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from poptorch_emu.machine.costs.cost import Cost
from poptorch_emu.machine.costs.elementwise import elementwise
from poptorch_emu.machine.costs.optimizer import Rule, rule
from poptorch_emu.machine.links import all_reduce_seconds
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.memory_plan import Content, Store
from poptorch_emu.plan.time.durations import Durations
from poptorch_emu.plan.time.time_plan import UpdateTime
from poptorch_emu.segments.sharding import sharding_of
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig, OptimizerKind

_RULES = {
    OptimizerKind.ADAM: Rule.ADAM,
    OptimizerKind.ADAMW: Rule.ADAM,
    OptimizerKind.ADAMW_NO_BIAS: Rule.ADAM,
    OptimizerKind.RMSPROP: Rule.RMSPROP,
    OptimizerKind.RMSPROP_CENTERED: Rule.RMSPROP,
    OptimizerKind.LAMB: Rule.LAMB,
    OptimizerKind.LAMB_NO_BIAS: Rule.LAMB,
}
_OF_UPDATE = (Content.WEIGHT, Content.STATE, Content.ACCUMULATOR)


def update_times(durations: Durations, optimizer: OptimizerConfig) -> tuple[UpdateTime, ...]:
    """Returns the time of one update on each IPU."""
    inventory = durations.inventory
    updates = [
        UpdateTime(
            inventory.placed.ipu_ids[ipu],
            _reduce_cycles(durations, ipu),
            _optimizer_cost(durations, optimizer, ipu).cycles,
            _remote_cycles(durations, ipu),
        )
        for ipu in range(inventory.schedule.num_ipus)
    ]
    takes_turns = inventory.config.machine.updates_in_turn
    if inventory.config.gradient_accumulation < 2 or not takes_turns:
        return tuple(updates)
    return tuple(_in_turn(updates))


def _in_turn(updates: Sequence[UpdateTime]) -> Iterator[UpdateTime]:
    """Yields updates in turn: each waits for all gradients, and for the IPU before it."""
    at = max(update.reduce_cycles for update in updates)
    for update in updates:
        yield replace(update, wait_cycles=at - update.reduce_cycles)
        at += update.optimizer_cycles + update.remote_cycles


def _reduce_cycles(durations: Durations, ipu: int) -> float:
    """Returns the cycles to add up gradients over the replicas, where no micro-batch did that.

    If each replica updates a part, gradients are reduced and scattered and weights are gathered,
    with the same traffic as an all-reduce.
    """
    inventory, replicas = durations.inventory, durations.inventory.config.replication_factor
    num_bytes = summed_bytes(inventory, ipu)
    if not num_bytes:
        return 0.0
    seconds = all_reduce_seconds(num_bytes, replicas, durations.ipus_per_replica, durations.numbers)
    size = inventory.accumulator_type.itemsize
    added = num_bytes // size * (replicas - 1) // replicas
    arithmetic = elementwise("add", added, size, durations.tiles)
    sync_cycles = durations.numbers.link_sync_cycles
    return seconds * durations.system.chip.clock_hz + arithmetic.cycles + sync_cycles


def summed_bytes(inventory: Inventory, ipu: int) -> int:
    """Returns the bytes of the gradients that an update adds up over the replicas, on one IPU.

    Gradients that every micro-batch adds up, and weights with a value for each replica, do not
    count.
    """
    replicas = inventory.config.replication_factor
    if replicas < 2:
        return 0
    num_elements = sum(
        weight.num_elements
        for weight in inventory.updated_on(ipu)
        if not inventory.is_sharded_accumulator(weight.name) and len(weight.leaders) < replicas
    )
    return num_elements * inventory.accumulator_type.itemsize


def _optimizer_cost(durations: Durations, optimizer: OptimizerConfig, ipu: int) -> Cost:
    """Returns the cost of the optimiser's rule on the weights of an IPU, and of its averages."""
    inventory, cost = durations.inventory, Cost()
    kind = _rule_of(optimizer)
    for weight in inventory.updated_on(ipu):
        is_part = sharding_of(weight, inventory.config).is_active
        num_elements = inventory.elements_of(weight, is_part)
        cost += rule(kind, num_elements, weight.dtype.itemsize, durations.tiles)
    update = inventory.update
    for average in update.averages[ipu] if update is not None else ():
        own = inventory.variables[average.average]
        # An average is two scaled operations, one after the other.
        for name in ("mul_scalar", "add"):
            cost += elementwise(name, own.num_elements, own.dtype.itemsize, durations.tiles)
    return cost


def _rule_of(optimizer: OptimizerConfig) -> Rule:
    if optimizer.kind in _RULES:
        return _RULES[optimizer.kind]
    has_momentum = not all(group.is_constant_zero("momentum") for group in optimizer.groups)
    return Rule.MOMENTUM if has_momentum else Rule.SGD


def _remote_cycles(durations: Durations, ipu: int) -> float:
    """Returns the cycles to load and store the state of each weight in streaming memory.

    Source: PopART updates one weight after the other; one transfer moves its state (assumed).
    """
    inventory = durations.inventory
    if inventory.update is None:
        return 0.0
    names = {part.code.name for part in inventory.update.parts[ipu]}
    moved = [m for m in durations.memory.movements if m.segment in names]
    weights = {
        holding.name.partition("___")[2] or holding.name
        for holding in durations.memory.select(ipu, store=Store.REMOTE)
        if holding.content in _OF_UPDATE
    }
    count = max(1, len(weights))
    seconds = sum(
        durations.remote_seconds(num_bytes, count)
        for num_bytes in (sum(m.loaded_bytes for m in moved), sum(m.stored_bytes for m in moved))
    )
    return seconds * durations.system.chip.clock_hz
