"""Durations of the segments and updates of one replica, each on its own.

Durations are computed from the placed model, without the engine.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import fx

from poptorch_emu.config import SyntheticData
from poptorch_emu.enums import OutputMode
from poptorch_emu.ir.graph import Sink, SinkKind, SourceKind, record_of
from poptorch_emu.ir.record import Phase
from poptorch_emu.machine.costs.code import Family
from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.optimizer import accumulate
from poptorch_emu.machine.costs.product import DEFAULT_PROPORTION
from poptorch_emu.machine.costs.tiles import Tiles
from poptorch_emu.machine.links import copy_cycles, gather_seconds
from poptorch_emu.machine.streams import input_seconds, output_seconds, remote_seconds
from poptorch_emu.machine.system import System
from poptorch_emu.machine.time_numbers import NUMBERS, TimeNumbers
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.memory_plan import MemoryPlan
from poptorch_emu.plan.operations.fused_gradients import fused_gradients
from poptorch_emu.plan.operations.memory_proportion import memory_proportion
from poptorch_emu.plan.operations.operation_cost import OperationCost, OperationCosts
from poptorch_emu.plan.operations.operation_family import family_of
from poptorch_emu.plan.operations.operation_titles import accumulation_title
from poptorch_emu.plan.tiles.tile_liveness import machine_bytes
from poptorch_emu.plan.tiles.tile_stash import Stashes
from poptorch_emu.plan.time.phase_overlap import PhaseWork, waiting_cycles
from poptorch_emu.plan.time.time_plan import ActionTime, OperationTime, StageTime
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.segments.phases import overlaps_phases, port_numbers
from poptorch_emu.segments.segment import Instruction

_STASH_BYTES_PER_CYCLE = 8

# Costs of operations, by everything that determines them except the graph.
KnownCosts = dict[tuple[Any, ...], OperationCosts]


@dataclass(frozen=True)
class Durations:
    """Durations of the segments of a replica on a system.

    Attributes:
        inventory: the segments, and everything that they compute on.
        memory: memory plan of the same segments.
        numbers: constants of the model of time.
        known_costs: costs of this graph's operations that other plans have computed.
        known_operations: times of operations that plans with the same code, options of the machine
            and system have computed, by segment.
    """

    inventory: Inventory
    memory: MemoryPlan
    system: System
    numbers: TimeNumbers = NUMBERS
    known_costs: KnownCosts = field(default_factory=dict)
    known_operations: dict[Port, tuple[OperationTime, ...]] = field(default_factory=dict)

    @cached_property
    def tiles(self) -> Tiles:
        """The tiles of an IPU that compute."""
        chip, config = self.system.chip, self.inventory.config
        num_tiles = chip.num_tiles - config.machine.num_io_tiles
        return Tiles.of(chip, num_tiles, config.is_training, self.numbers)

    @cached_property
    def ipus_per_replica(self) -> int:
        """Number of IPUs that a replica occupies, including unused ones in between."""
        return 1 + max(self.inventory.placed.ipu_ids)

    def user_ipu(self, port: Port) -> int:
        """Returns the user's number of the IPU that runs a segment."""
        return self.inventory.placed.ipu_ids[self.inventory.ipu_of(port)]

    @cached_property
    def costs(self) -> OperationCosts:
        """The costs of all operations."""
        return self._costs(0.0)

    @cached_property
    def _usual_costs(self) -> OperationCosts | None:
        """Costs if all memory proportions were at least the default; None if they are."""
        shares = map(self._proportion_of, self.inventory.graph.operations)
        is_low = min(shares, default=DEFAULT_PROPORTION) < DEFAULT_PROPORTION
        return self._costs(DEFAULT_PROPORTION) if is_low else None

    def _costs(self, least_proportion: float) -> OperationCosts:
        """Returns the costs if every operation has at least this proportion of a tile's memory."""
        machine, placed = self.inventory.config.machine, self.inventory.placed
        proportions = machine.available_memory_proportion
        places = placed.ipu_ids, placed.ipu_of_stage, tuple(placed.port_of.values())
        precision = machine.has_half_products, machine.has_half_convolutions
        of_products = least_proportion, proportions, places if proportions else ()
        key = self.tiles, self.ipus_per_replica, precision, of_products
        if key not in self.known_costs:
            self.known_costs[key] = OperationCosts(
                self.tiles,
                self.inventory.graph.regions,
                lambda node: max(least_proportion, self._proportion_of(node)),
                machine.has_half_products,
                machine.has_half_convolutions,
                self.ipus_per_replica,
                fused_gradients(self.inventory.graph),
            )
        return self.known_costs[key]

    def _proportion_of(self, node: fx.Node) -> float:
        port = self.inventory.placed.port_of.get(node)
        ipu = None if port is None else self.inventory.ipu_of(port)
        return memory_proportion(self.inventory, node, ipu)

    @cached_property
    def stages(self) -> tuple[StageTime, ...]:
        """Times of each stage for one micro-batch."""
        return tuple(map(self._stage, range(self.inventory.placed.num_stages)))

    def _stage(self, stage: int) -> StageTime:
        """Returns the time of a stage. Overlapped streams count if they outlast the computation."""
        kinds = Kind.FORWARD, *self.inventory.schedule.kinds[stage]
        times = {kind: self.action((kind, stage)) for kind in kinds}
        forward = self._with_host_syncs(stage, times[Kind.FORWARD])
        ports = [(kind, stage) for kind in kinds]
        inputs = sum(self._input_seconds(port, is_overlapped=True) for port in ports)
        outputs = sum(self._output_seconds(port, is_overlapped=True) for port in ports)
        all_cycles = sum(time.cycles for time in times.values())
        waiting = (inputs + outputs) * self.system.chip.clock_hz - all_cycles
        if waiting > 0:
            of_inputs = waiting * inputs / (inputs + outputs)
            forward = replace(
                forward,
                input_cycles=forward.input_cycles + of_inputs,
                output_cycles=forward.output_cycles + waiting - of_inputs,
            )
        return StageTime(
            stage,
            self.user_ipu((Kind.FORWARD, stage)),
            self._blocks[stage],
            forward,
            times.get(Kind.BACKWARD) or times.get(Kind.BACKWARD_INPUTS) or ActionTime(),
            times.get(Kind.BACKWARD_WEIGHTS, ActionTime()),
            times.get(Kind.RECOMPUTE, ActionTime()),
        )

    def _with_host_syncs(self, stage: int, forward: ActionTime) -> ActionTime:
        """Returns the forward of a stage with a synchronisation with the host for each direction.

        In a pipeline, all IPUs synchronise in each cycle; otherwise, IPUs that have streams do.
        """
        placed, strategy = self.inventory.placed, self.inventory.config.strategy
        ports = [port for port in self.inventory.cut.segments if port[1] == stage]
        if strategy.meets_in_cycles:
            is_first = stage == placed.ipu_of_stage.index(placed.ipu_of_stage[stage])
            ports = list(self.inventory.cut.segments) if is_first else []
        cycles = self.numbers.host_sync_seconds * self.system.chip.clock_hz
        given = any(self._input_seconds(port, is_overlapped=False) for port in ports)
        output = any(self._output_seconds(port, is_overlapped=False) for port in ports)
        return replace(
            forward,
            input_cycles=forward.input_cycles + given * cycles,
            output_cycles=forward.output_cycles + output * cycles,
        )

    @cached_property
    def _blocks(self) -> tuple[tuple[str, ...], ...]:
        return self.inventory.placed.blocks_of_stages(self.inventory.graph)

    @cached_property
    def operations(self) -> dict[Port, tuple[OperationTime, ...]]:
        """Times of the operations of each segment."""
        known = self.known_operations
        for port in self.inventory.cut.segments:
            if port not in known:
                known[port] = tuple(self._operations(port))
        return known

    def _operations(self, port: Port) -> list[OperationTime]:
        segment = self.inventory.cut.segments[port]
        found = [
            self._operation(port, instruction)
            for instruction in segment.instructions
            if family_of(instruction.node) is not Family.VIEW
        ]
        if self.inventory.config.gradient_accumulation > 1:
            found += [
                self._accumulation(port, sink, node)
                for sink, home, node in self.inventory.cut.results
                if home == port and sink.kind is SinkKind.GRADIENT
            ]
        return found

    def _operation(self, port: Port, instruction: Instruction) -> OperationTime:
        node = instruction.node
        found, record = self.costs.of(node), record_of(node)
        usual = found if self._usual_costs is None else self._usual_costs.of(node)
        return OperationTime(
            segment=self.inventory.cut.segments[port].name,
            ipu=self.user_ipu(port),
            name=self.inventory.titles[node],
            operator=str(instruction.target._schema.name),
            module=record.module,
            source=record.source,
            family=family_of(node).name.lower(),
            is_recomputed=port[0] is not Kind.FORWARD and record.phase is Phase.FORWARD,
            is_known=found.is_known,
            is_rough=found.is_rough,
            proportion_cycles=max(0.0, found.cost.cycles - usual.cost.cycles),
            **_cycles(found),
        )

    def _accumulation(self, port: Port, sink: Sink, node: fx.Node) -> OperationTime:
        """Returns the time to add a gradient to its accumulator."""
        inventory = self.inventory
        weight = inventory.variables[sink.name]
        cost = accumulate(
            inventory.elements_of(weight, inventory.is_sharded_accumulator(weight.name)),
            node.meta["val"].itemsize,
            inventory.accumulator_type.itemsize,
            self.tiles,
        )
        return OperationTime(
            segment=inventory.cut.segments[port].name,
            ipu=self.user_ipu(port),
            name=accumulation_title(sink.name),
            operator="accumulate",
            module=sink.name.rpartition(".")[0],
            source="",
            family="accumulation",
            is_recomputed=False,
            is_known=True,
            is_rough=False,
            **_cycles(OperationCost(cost)),
        )

    def action(self, port: Port) -> ActionTime:
        """Returns the time of a segment for one micro-batch."""
        if port not in self.inventory.cut.segments:
            return ActionTime()
        operations, clock_hz = self.operations[port], self.system.chip.clock_hz
        met = {op: op.exchange_cycles for op in operations if op.is_collective}
        first = [op for op in operations if not op.is_recomputed]
        return ActionTime(
            compute_cycles=sum(op.usual_share * op.compute_cycles for op in first),
            exchange_cycles=sum(
                op.usual_share * op.exchange_cycles for op in first if op not in met
            ),
            sync_cycles=sum(op.usual_share * op.sync_cycles for op in first),
            recompute_cycles=sum(
                op.cycles - met.get(op, 0.0) for op in operations if op.is_recomputed
            ),
            proportion_cycles=sum(op.proportion_cycles for op in first),
            link_cycles=self._link_cycles(port),
            stash_cycles=self._stash_cycles(port),
            remote_cycles=self._phase_waits[port],
            reduce_cycles=self._reduce_cycles(port) + sum(met.values()),
            input_cycles=self._input_seconds(port, is_overlapped=False) * clock_hz,
            output_cycles=self._output_seconds(port, is_overlapped=False) * clock_hz,
        )

    @cached_property
    def _stashes(self) -> Stashes:
        return Stashes(self.inventory)

    def _link_cycles(self, port: Port) -> float:
        """Returns the cycles that a segment waits for data from other IPUs, which send in turn."""
        total = 0.0
        sizes: defaultdict[Port, int] = defaultdict(int)
        for link in self.inventory.links:
            if link.consumer == port:
                sizes[link.producer] += sum(self._stashes.bytes_of(link).values())
        for producer, num_bytes in sizes.items():
            ends = self.user_ipu(producer), self.user_ipu(port)
            total += copy_cycles(num_bytes, *ends, self.system.chip, self.numbers)
        return total

    def _stash_cycles(self, port: Port) -> float:
        """Returns the cycles of copies to and from stashes; a stash of one item needs no copy."""
        num_bytes = sum(
            sum(self._stashes.bytes_of(link).values())
            for link in self.inventory.links
            if link.is_stash and link.depth > 1 and not link.is_remote
            if port in (link.producer, link.consumer)
        )
        return -(-num_bytes // self.tiles.count) / _STASH_BYTES_PER_CYCLE

    def _reduce_cycles(self, port: Port) -> float:
        """Returns the cycles that a segment waits for parts of tensors on other replicas.

        A gradient is reduced in every micro-batch if its sum is divided among the replicas.
        """
        inventory, segment = self.inventory, self.inventory.cut.segments[port]
        uses = (inventory.use_of(source, is_sharded=False) for source in segment.loads)
        gathered = sum(use.num_bytes for use in uses if use is not None and use.is_gathered)
        gathered += sum(
            inventory.variables[sink.name].num_elements * inventory.accumulator_type.itemsize
            for sink, home, _ in inventory.cut.results
            if home == port
            and sink.kind is SinkKind.GRADIENT
            and inventory.is_sharded_accumulator(sink.name)
        )
        replicas = inventory.config.replication_factor
        seconds = gather_seconds(gathered, replicas, self.ipus_per_replica, self.numbers)
        return seconds * self.system.chip.clock_hz

    @cached_property
    def _phase_waits(self) -> dict[Port, float]:
        """Cycles that each segment waits for streaming memory, which phases may hide."""
        moved = {port: self._moved_cycles(port) for port in self.inventory.cut.segments}
        if not overlaps_phases(self.inventory.config):
            return {port: loads + stores for port, (loads, stores) in moved.items()}
        numbers = port_numbers(self.inventory.placed, self.inventory.config)
        return waiting_cycles(
            {
                port: PhaseWork(
                    numbers[port],
                    self.inventory.ipu_of(port),
                    *moved[port],
                    sum(op.cycles for op in self.operations[port]),
                )
                for port in self.inventory.cut.segments
            }
        )

    def _moved_cycles(self, port: Port) -> tuple[float, float]:
        """Returns the cycles to load and to store a segment's tensors in streaming memory."""
        name = self.inventory.cut.segments[port].name
        count = self.inventory.schedule.num_micro_batches
        loads = stores = 0.0
        for moved in self.memory.movements:
            if moved.segment == name:
                loads += self.remote_seconds(round(moved.loaded_bytes / count))
                stores += self.remote_seconds(round(moved.stored_bytes / count))
        clock = self.system.chip.clock_hz
        return loads * clock, stores * clock

    def remote_seconds(self, num_bytes: int, num_transfers: int = 1) -> float:
        """Returns the seconds to move `num_bytes` between an IPU and streaming memory."""
        num_ipus = self.ipus_per_replica * self.inventory.config.replication_factor
        return remote_seconds(num_bytes, num_ipus, num_transfers, self.numbers)

    def _has_streams(self, port: Port) -> bool:
        is_synthetic = self.inventory.config.synthetic_data is not SyntheticData.OFF
        return not is_synthetic and port in self.inventory.cut.segments

    def _input_seconds(self, port: Port, *, is_overlapped: bool) -> float:
        """Returns the seconds of the transfers of a segment's inputs.

        Args:
            port: port of the segment.
            is_overlapped: whether to count inputs that move during computation, or the others.
        """
        inventory, seconds = self.inventory, 0.0
        if not self._has_streams(port) or port[0] is not Kind.FORWARD:
            return seconds
        for source in inventory.cut.segments[port].loads:
            is_input = source.kind is SourceKind.INPUT
            if is_input and (source in inventory.overlapped) == is_overlapped:
                num_bytes = machine_bytes(self._stashes.input_of[source])
                seconds += input_seconds(
                    num_bytes, self.system, self.ipus_per_replica, is_overlapped, self.numbers
                )
                if not inventory.config.machine.is_prefetched:
                    seconds += self.numbers.stream_begin_cycles / self.system.chip.clock_hz
        return seconds

    def _output_seconds(self, port: Port, *, is_overlapped: bool) -> float:
        """Returns the seconds of the transfers of results that every micro-batch returns.

        Args:
            port: port of the segment.
            is_overlapped: whether to count results that move during computation, or the others.
        """
        inventory, seconds = self.inventory, 0.0
        if not self._has_streams(port):
            return seconds
        returned = {SinkKind.INPUT}  # Inputs changed in place return in every mode.
        if inventory.config.output_mode is OutputMode.All:
            returned.add(SinkKind.OUTPUT)
        for sink, home, node in inventory.cut.results:
            if home != port or sink.kind not in returned:
                continue
            if (sink in inventory.overlapped) == is_overlapped:
                seconds += output_seconds(machine_bytes(node), self.numbers)
        return seconds


def _cycles(found: OperationCost) -> dict[str, Any]:
    cost: Cost = found.cost
    evidence: Evidence = cost.evidence
    return {
        "compute_cycles": cost.compute_cycles,
        "exchange_cycles": cost.exchange_cycles,
        "sync_cycles": cost.sync_cycles,
        "steps": cost.steps,
        "evidence": evidence.value,
    }
