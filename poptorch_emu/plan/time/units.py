"""The units between which a model can be cut: the user's blocks, or else its modules."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from torch import fx

from poptorch_emu.config import SyntheticData
from poptorch_emu.ir.graph import SinkKind, SourceKind, operation_of, record_of, source_of
from poptorch_emu.ir.record import Phase
from poptorch_emu.machine.costs.code import Family
from poptorch_emu.machine.streams import input_seconds
from poptorch_emu.plan.memory.memory_plan import Content, Store
from poptorch_emu.plan.operations.operation_family import family_of
from poptorch_emu.plan.tiles.tile_liveness import machine_bytes
from poptorch_emu.plan.time.durations import Durations
from poptorch_emu.plan.time.split import Tie, Unit

_HELD = {Content.WEIGHT, Content.STATE, Content.ACCUMULATOR}


@dataclass(frozen=True)
class Units:
    """The units of a model, and the weights that prevent some cuts.

    Attributes:
        units: units in the order of forward.
        is_of_blocks: whether the units are the user's blocks; otherwise they are modules.
        ties: weights that several units use.
        unit_of: index of the unit of each operation, including backward operations.
    """

    units: list[Unit]
    is_of_blocks: bool
    ties: tuple[Tie, ...]
    unit_of: dict[fx.Node, int]


def units_of(durations: Durations, num_stages: int, least_blocks: int = 2) -> Units:
    """Returns the units of a model: the user's blocks, if there are at least `least_blocks`.

    Otherwise the units are the modules of the least depth that has twice as many modules as stages.
    If no depth has, the greatest depth counts.
    """
    operations = durations.inventory.graph.operations
    forward = [node for node in operations if record_of(node).phase is Phase.FORWARD]
    blocks = _ordered(forward, lambda node: record_of(node).place.block_id)
    is_of_blocks = len(set(blocks.values())) >= least_blocks
    found = _Units(durations, blocks if is_of_blocks else _by_modules(forward, num_stages))
    return Units(found.units(), is_of_blocks, found.ties(), dict(found.of_operations(operations)))


def _by_modules(forward: list[fx.Node], num_stages: int) -> dict[fx.Node, str]:
    depths = 1 + max((record_of(node).module.count(".") for node in forward), default=0)
    for depth in range(1, depths + 1):
        modules = _ordered(forward, partial(_prefix, depth=depth))
        if len(set(modules.values())) >= 2 * num_stages:
            break
    return modules


def _prefix(node: fx.Node, depth: int) -> str:
    return ".".join(record_of(node).module.split(".")[:depth])


def _ordered(nodes: list[fx.Node], name_of: Callable[[fx.Node], str]) -> dict[fx.Node, str]:
    """Returns the unit of each operation, so that each unit is one contiguous run."""
    found: dict[fx.Node, str] = {}
    seen: list[str] = []
    for node in nodes:
        name = name_of(node)
        if name and name not in seen:
            seen.append(name)
        found[node] = seen[-1] if seen else name
    first = seen[0] if seen else ""
    return {node: name or first for node, name in found.items()}


class _Units:
    def __init__(self, durations: Durations, unit_of: dict[fx.Node, str]) -> None:
        self._durations = durations
        self._unit_of = unit_of
        self._names = list(dict.fromkeys(unit_of.values()))
        self._index = {name: index for index, name in enumerate(self._names)}

    def units(self) -> list[Unit]:
        """Returns all units in order."""
        forward, backward = self._cycles()
        held, activations, sent = self._held(), self._activations(), self._sent()
        host = self._host()
        marked = {name for node, name in self._unit_of.items() if record_of(node).is_checkpoint}
        return [
            Unit(
                name, forward[i], backward[i], held[i], activations[i], sent[i], host[i],
                name in marked,
            )
            for i, name in enumerate(self._names)
        ]  # fmt: skip

    def ties(self) -> tuple[Tie, ...]:
        """Returns the trained weights that several units use; in inference, all such matrices."""
        inventory, found = self._durations.inventory, []
        trained = {s.name for s, _, _ in inventory.cut.results if s.kind is SinkKind.GRADIENT}
        for node in inventory.graph.sources:
            source, value = source_of(node), node.meta["val"]
            if not inventory.config.is_training:
                is_weight = value.is_floating_point() and value.dim() > 1
            else:
                is_weight = source.name in trained
            if source.kind is not SourceKind.VARIABLE or not is_weight:
                continue
            users = self._users(node)
            if len(users) > 1:
                found.append(Tie(source.name, tuple(sorted(users))))
        return tuple(found)

    def _users(self, value: fx.Node) -> set[int]:
        """Returns the indices of the units whose forward reads a value."""
        return {self._index[self._unit_of[user]] for user in value.users if user in self._unit_of}

    def _cycles(self) -> tuple[defaultdict[int, float], defaultdict[int, float]]:
        forward: defaultdict[int, float] = defaultdict(float)
        backward: defaultdict[int, float] = defaultdict(float)
        for node, index in self.of_operations(self._durations.inventory.graph.operations):
            cycles = self._durations.costs.of(node).cost.cycles
            (forward if node in self._unit_of else backward)[index] += cycles
        return forward, backward

    def of_operations(self, operations: Iterable[fx.Node]) -> Iterator[tuple[fx.Node, int]]:
        """Yields operations with the indices of their units, including backward operations."""
        of_record = {
            (record_of(node).place.block_id, record_of(node).module): self._index[name]
            for node, name in self._unit_of.items()
        }
        last = len(self._names) - 1
        for node in operations:
            if node in self._unit_of:
                yield node, self._index[self._unit_of[node]]
                continue
            # Backward visits units in reverse. An operation of an unknown module, or of no module,
            # such as a sum of gradients, joins the last unit.
            record = record_of(node)
            if not record.is_anonymous:
                last = of_record.get((record.place.block_id, record.module), last)
            yield node, last

    def _host(self) -> defaultdict[int, float]:
        """Returns the cycles that the first user of each input waits for it, by unit."""
        found: defaultdict[int, float] = defaultdict(float)
        durations = self._durations
        if durations.inventory.config.synthetic_data is not SyntheticData.OFF:
            return found
        for node in durations.inventory.graph.sources:
            if source_of(node).kind is SourceKind.INPUT:
                seconds = input_seconds(
                    machine_bytes(node),
                    durations.system,
                    1,
                    is_overlapped=False,
                    numbers=durations.numbers,
                )
                found[min(self._users(node), default=0)] += seconds * durations.system.chip.clock_hz
        return found

    def _held(self) -> defaultdict[int, int]:
        """Returns the bytes of weights with their state, by the unit that first uses them."""
        home: dict[str, int] = {}
        for node in self._durations.inventory.graph.sources:
            if source_of(node).kind is SourceKind.VARIABLE:
                home[source_of(node).name] = min(self._users(node), default=0)
        found: defaultdict[int, int] = defaultdict(int)
        for holding in self._durations.memory.select(store=Store.ON_CHIP):
            if holding.content in _HELD:
                weight = holding.name.partition("___")[2] or holding.name
                found[home.get(weight, 0)] += holding.num_bytes
        return found

    def _activations(self) -> defaultdict[int, int]:
        found: defaultdict[int, int] = defaultdict(int)
        for node, name in self._unit_of.items():
            if family_of(node) is not Family.VIEW:
                found[self._index[name]] += sum(map(machine_bytes, _values_of(node)))
        return found

    def _sent(self) -> defaultdict[int, int]:
        """Returns the bytes that cross from each unit to later ones."""
        found: defaultdict[int, int] = defaultdict(int)
        for node, name in self._unit_of.items():
            for value in _values_of(node):
                for index in range(self._index[name], max(self._users(value), default=0)):
                    found[index] += machine_bytes(value)
        return found


def _values_of(node: fx.Node) -> list[fx.Node]:
    """Returns the values that an operation computes."""
    selected = [user for user in node.users if user.op == "call_function"]
    parts = [user for user in selected if _selects(user, node)]
    return parts or ([] if isinstance(node.meta["val"], (list, tuple)) else [node])


def _selects(user: fx.Node, node: fx.Node) -> bool:
    return user.target is operator.getitem and operation_of(user) is node
