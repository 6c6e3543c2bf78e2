"""Lowers segments, schedule and optimiser to a program of the engine.

The lowering calls the builder of `_C.Program`, with operations in the form that `instruction`
returns. All decisions about a model are made here or above, so that the engine only obeys.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from poptorch_emu import _C
from poptorch_emu.engine.instruction import lowered
from poptorch_emu.engine.layout.fused_update import can_update_in_place, fused_code
from poptorch_emu.engine.layout.preparation import Conversion, Prepared, prepare, prepare_update
from poptorch_emu.engine.micro_batch_path import path_of
from poptorch_emu.engine.network_row import NetworkRow
from poptorch_emu.engine.output_stores import OutputStores
from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.ir.graph import Sink, SinkKind, Source, SourceKind
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.segments.placement import location_of
from poptorch_emu.segments.segment import Segment
from poptorch_emu.segments.segmented_graph import is_added_already, is_left_to_sum
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig, scalar_name, split_scalar
from poptorch_emu.update.parts.update_parts import Part, state_variable
from poptorch_emu.update.parts.update_plan import UpdatePlan


class Lowering:
    """Builds one program; `variables` and `scalars` map names to their numbers in the program."""

    def __init__(self, inventory: Inventory, optimizer: OptimizerConfig | None) -> None:
        """Stores the inventory to lower and, in training, the optimiser."""
        self.program = _C.Program()
        self.variables: dict[str, VariableInfo] = {}
        self.scalars: dict[tuple[str, int], int] = {}
        self.written_inputs: list[int] = []
        self.segment_names: list[str] = []
        self.window_names: set[str] = set()
        self._inventory = inventory
        self._graph = inventory.graph
        self._cut = inventory.cut
        self._links = inventory.links
        self._partition = inventory.placed
        self._schedule = inventory.schedule
        self._config = inventory.config
        self._optimizer = optimizer
        self._outputs = OutputStores(self.program)
        self._constants: dict[str, int] = {}
        self._accumulators: dict[str, int] = {}
        self._segments: dict[Port, int] = {}
        self._conversions: dict[Conversion, int] = {}
        self._update_segments: list[list[int]] = []
        self._network = NetworkRow(self._config)
        self._network_actions: list[tuple[int, int]] = []
        self._updates_in_place = False

    @property
    def anchors(self) -> list[str]:
        """Names of the outputs that are anchors, in order."""
        return self._outputs.anchors

    def run(self, inputs: list[bool]) -> None:
        """Fills the program.

        Args:
            inputs: whether each host input is split into micro-batches, in the order of the inputs.
        """
        for number, is_batched in enumerate(inputs):
            self.program.add_input(str(number), is_batched)
        update = self._inventory.update
        states = {state.name for state in update.states} if update is not None else set()
        for name, variable in self._inventory.variables.items():
            if name not in states:
                self._add_variable(variable)
        self._add_accumulators()
        self._add_micro_batch_segments()
        self._add_links()
        self._add_results()
        if update is not None:
            self._add_update(update)
        self._set_remote()
        config, num_runs = self._config, self._schedule.num_micro_batches
        window = config.num_micro_batches
        self.program.set_schedule(self._actions(), window, joined=window // num_runs)
        path = path_of(self._inventory)
        self.program.set_path([(self._segments[port], turns) for port, turns in path.items()])
        self.program.set_numerics(config.checks_floating_point, config.rounds_stochastically)
        self.program.validate()

    def _add_variable(self, variable: VariableInfo) -> None:
        """Adds a variable and stores the number that the program assigns to it."""
        index = self.program.add_variable(
            variable.name, list(variable.shape), variable.dtype, variable.is_per_replica
        )
        self.program.group_variable(index, variable.group_of_replica)
        # Each of several processes holds the whole variable, so that one can write a checkpoint.
        if variable.is_sharded and not self._config.is_distributed:
            self.program.shard_variable(index)
        self.variables[variable.name] = replace(variable, index=index)

    def _add_accumulators(self) -> None:
        """Adds a sum for the gradients of each weight."""
        for weight in [s.name for s, _, _ in self._cut.results if s.kind is SinkKind.GRADIENT]:
            assert self._optimizer is not None, "gradients are computed for an optimiser only"
            accumulator = self._accumulators[weight] = self.program.add_accumulator(
                weight, self._optimizer.accum_type, self._config.is_running_mean
            )
            self.program.group_accumulator(accumulator, self.variables[weight].group_of_replica)

    def _add_micro_batch_segments(self) -> None:
        for port, segment in self._cut.segments.items():
            ipu = self._partition.ipu_of_stage[port[1]]
            parts = prepare(segment, self._inventory)
            self._segments[port] = self._emit_prepared(parts, ipu, _C.SegmentKind.MICRO_BATCH)
            self._network.add_collectives(port, parts.code)

    def _emit_prepared(
        self, parts: Prepared, ipu: int, kind: _C.SegmentKind, part: Part | None = None
    ) -> int:
        prepared: dict[int, tuple[int, int]] = {}
        if parts.shared:
            before = self._emit(parts.preparation, ipu, _C.SegmentKind.PREPARATION, part)
            prepared = {register: (before, register) for register in parts.shared}
        for register, conversion in parts.conversions.items():
            prepared[register] = self._emit_conversion(conversion, ipu), conversion.RESULT
        index = self._emit(parts.code, ipu, kind, part)
        for register, (preparation, result) in prepared.items():
            self.program.load_prepared(index, register, preparation, result)
        return index

    def _emit_conversion(self, conversion: Conversion, ipu: int) -> int:
        if conversion not in self._conversions:
            index = self._emit(conversion.code, ipu, _C.SegmentKind.PREPARATION)
            self.program.set_lifetime(index, _C.Lifetime.WINDOW)
            self._conversions[conversion] = index
        return self._conversions[conversion]

    def _add_links(self) -> None:
        for plan in self._links:
            source, target = self._cut.segments[plan.producer], self._cut.segments[plan.consumer]
            link = self.program.add_link(
                self._segments[plan.producer],
                [source.registers[node] for node in plan.nodes],
                self._segments[plan.consumer],
                [target.registers[node] for node in plan.nodes],
                plan.depth,
            )
            if plan.is_remote:
                self.program.set_remote_link(link)
            if plan.is_shard:
                self.program.shard_link(link)

    def _set_remote(self) -> None:
        """Marks the variables and accumulators that live in streaming memory."""
        for variable in self.variables.values():
            if location_of(self._config, variable.is_state).is_remote(variable.num_elements):
                self.program.set_remote_variable(variable.index)
        location = self._config.locations.accumulator
        for name, accumulator in self._accumulators.items():
            weight = self.variables.get(name)
            if weight is not None and location.is_remote(weight.num_elements):
                self.program.set_remote_accumulator(accumulator)

    def _add_results(self) -> None:
        mode = _C.OutputMode(int(self._config.output_mode))
        period = self._config.output_return_period
        for sink, port, node in self._cut.results:
            if sink.kind is SinkKind.GRADIENT:
                if not is_added_already(sink, node):
                    self._add_gradient(sink.name, port, node)
                continue
            if sink.kind is SinkKind.OUTPUT:
                self._outputs.add(sink, *self._place(port, node), mode, period)
            elif sink.kind is SinkKind.VARIABLE:
                index = self.variables[sink.name].index
                self.program.store_variable(*self._place(port, node), index)
        for sink, port, node in self._cut.results:
            if sink.kind is SinkKind.INPUT:  # The output holds the rows of all micro-batches.
                self.program.store_output(*self._place(port, node), _C.OutputMode.ALL, 1)
                self.written_inputs.append(int(sink.name))
        of_name = {anchor.short_name: anchor for anchor in self._config.anchors}
        for sink, port, node in self._cut.results:
            if sink.kind is SinkKind.ANCHOR:
                self._outputs.add_anchor(sink, *self._place(port, node), of_name[sink.name])

    def _place(self, port: Port, node: fx.Node) -> tuple[int, int]:
        """Returns the segment and the register that hold a value."""
        return self._segments[port], self._cut.segments[port].registers[node]

    def _add_gradient(self, weight: str, port: Port, node: fx.Node) -> None:
        """Adds the step that adds the gradient of one micro-batch to the sum of a weight."""
        accumulator = self._accumulators[weight]
        if self._config.is_distributed and self._inventory.is_sharded_accumulator(weight):
            self._network.add(weight, port, node)
            return
        if not is_left_to_sum(node):
            self.program.accumulate(*self._place(port, node), accumulator)
            return
        gradient = arguments_of(node)
        segment, register = self._place(port, gradient.rows)
        _, indices = self._place(port, gradient.indices)
        self.program.accumulate_rows(
            segment, register, accumulator, indices, gradient.num_rows, gradient.padding_index
        )

    def _add_update(self, plan: UpdatePlan) -> None:
        """Adds the segments that each IPU runs at the end of a window."""
        for state in plan.states:
            self._add_variable(state)
        for name in plan.sharded_accumulators:
            self.program.shard_accumulator(self._accumulators[name])
        for name in plan.sums:
            self._accumulators[name] = self.program.add_accumulator(name, torch.float32, False)
        self._emit_network_row()
        self._emit_updates(plan)

    def _emit_network_row(self) -> None:
        """Adds the network's actions in each micro-batch, the collectives of a segment first."""
        self._network.warn_of_price(self._inventory)
        ipu = self._schedule.num_ipus
        for port, number, code in self._network.relays():
            index = self._emit(code, ipu, _C.SegmentKind.MICRO_BATCH)
            self.program.relay(index, self._segments[port], number)
            self._network.indices[port].append(index)
        for port, sums in self._network.sums.items():
            index = self._emit(sums.code, ipu, _C.SegmentKind.MICRO_BATCH)
            self._network.indices[port].append(index)
            sources = [self._place(port, node)[1] for node in sums.nodes]
            self.program.add_link(self._segments[port], sources, index, sums.registers, 1)
            for weight, register in zip(sums.weights, sums.registers, strict=True):
                self.program.accumulate(index, register, self._accumulators[weight])
        self._network_actions += self._network.entries(self._schedule)

    def _emit_updates(self, plan: UpdatePlan) -> None:
        indices: dict[str, int] = {}
        # Operations are not fused if floating-point numbers are checked after each one.
        is_looked_at = self._config.checks_floating_point
        self._updates_in_place = not is_looked_at and can_update_in_place(plan)
        for ipu, parts in enumerate(plan.parts):
            for part in parts:
                indices[part.code.name] = self._emit_part(part, ipu)
            self._update_segments.append([indices[part.code.name] for part in parts])
        for part in plan.network:
            index = indices[part.code.name] = self._emit_part(part, len(plan.parts))
            self._network_actions.append((index, 0))
        for link in plan.links:
            ends = indices[link.producer], link.sources, indices[link.consumer], link.targets
            self.program.add_link(*ends, 1)

    def _emit_part(self, part: Part, ipu: int) -> int:
        values = self._window_values(part)
        anchors = [anchor for anchor in self._config.anchors if anchor.long_name in values]
        if anchors:
            part.finish(anchored=[values[anchor.long_name] for anchor in anchors])
        prepared = prepare_update(self._update_code(part), self._config)
        index = self._emit_prepared(prepared, ipu, _C.SegmentKind.WINDOW, part)
        for anchor in anchors:
            sink = Sink(SinkKind.ANCHOR, anchor.short_name)
            self._outputs.add_anchor(sink, index, values[anchor.long_name], anchor)
        self.program.set_runners(index, part.runners)
        for name in part.reductions:
            self.program.reduce(index, self._accumulators[name])
        self._emit_exchanges(part, index)
        for register, name in part.stores.items():
            variable = self.variables[name].index
            if part.is_by_rows and not self._updates_in_place:
                accumulator = self._accumulators[name]
                self.program.store_variable_rows(index, register, variable, accumulator)
            elif part.is_sharded and self.variables[name].shape:
                self.program.store_variable_shard(index, register, variable)
            else:
                self.program.store_variable(index, register, variable)
        for register, name in part.sums.items():
            self.program.accumulate(index, register, self._accumulators[name])
        return index

    def _emit_exchanges(self, part: Part, index: int) -> None:
        for name in part.exchanges:
            self.program.exchange(index, self._accumulators[name])
        for name in part.scatters:
            self.program.scatter(index, self._accumulators[name])
        for name in part.gathered_sums:
            self.program.gather_accumulator(index, self._accumulators[name])
        for name in part.gathers:
            self.program.gather_variable(index, self.variables[name].index)

    def _update_code(self, part: Part) -> Segment:
        """Returns the code of a part, fused unless floating-point numbers are checked."""
        if self._config.checks_floating_point:
            return part.code
        return fused_code(part, in_place=self._updates_in_place)

    def _window_values(self, part: Part) -> dict[str, int]:
        """Returns the registers of an update that can be anchored, by PopART's names for them.

        A part that runs on some of the replicas only, or on shards, has no such registers.
        """
        if part.is_sharded or len(part.runners) not in (1, self._config.replication_factor):
            return {}
        values = {
            name if self.variables[name].is_state else f"UpdatedVar___{name}": register
            for register, name in part.stores.items()
        }
        if self._config.gradient_accumulation > 1 and part.stores:
            for source, register in part.code.loads.items():
                if source.kind is SourceKind.GRADIENT:
                    values[state_variable("Accum", source.name)] = register
        values.update(part.named)
        self.window_names.update(values)
        return {} if part.is_by_rows else values

    def _scalar(self, name: str, group: int) -> int:
        if (name, group) not in self.scalars:
            assert self._optimizer is not None, "hyper-parameters belong to an optimiser"
            value = self._optimizer.value(name, group)
            self.scalars[name, group] = self.program.add_scalar(scalar_name(name, group), value)
        return self.scalars[name, group]

    def _actions(self) -> list[list[tuple[int, int]]]:
        """Returns the list of each IPU and, if the network has actions, its list after them."""
        rows = [
            [entry for action in self._schedule.actions(ipu) for entry in self._entries(action)]
            for ipu in range(self._schedule.num_ipus)
        ]
        return [*rows, self._network_actions] if self._network_actions else rows

    def _entries(self, action: Action) -> list[tuple[int, int]]:
        """Returns the (segment, turn) pairs that one action runs; an update may have several."""
        if action.kind is Kind.UPDATE:
            return [(segment, 0) for segment in self._update_segments[action.stage]]
        return [(self._segments[port], turn) for port, turn in self._schedule.turns(action)]

    def _emit(
        self, segment: Segment, ipu: int, kind: _C.SegmentKind, part: Part | None = None
    ) -> int:
        index = self.program.add_segment(segment.name, ipu, kind)
        if segment.is_seen_outside:
            self.program.set_seen_outside(index)
        self.segment_names.append(segment.name)
        emit_cut_load = self._emit_load
        if part is not None and part.is_sharded:
            emit_cut_load = self._emit_shard_load
        elif part is not None and part.is_by_rows:
            emit_cut_load = self._emit_row_load
        for source, register in segment.loads.items():
            emit = emit_cut_load if self._is_cut(source) else self._emit_load
            emit(index, source, register)
        for instruction in segment.instructions:
            self.program.add_instruction(index, *lowered(instruction, self._accumulators))
        return index

    def _is_cut(self, source: Source) -> bool:
        """Returns whether a segment of shards or rows reads only a part of `source`."""
        if source.kind not in (SourceKind.VARIABLE, SourceKind.GRADIENT):
            return False
        variable = self.variables.get(source.name)
        return variable is not None and bool(variable.shape)

    def _emit_shard_load(self, segment: int, source: Source, register: int) -> None:
        name = source.name
        if source.kind is SourceKind.VARIABLE:
            self.program.load_variable_shard(segment, register, self.variables[name].index)
        else:
            self.program.load_accumulator_shard(segment, register, self._accumulators[name])

    def _emit_row_load(self, segment: int, source: Source, register: int) -> None:
        accumulator = self._accumulators[source.name]
        if source.kind is SourceKind.VARIABLE and self._updates_in_place:
            self._emit_load(segment, source, register)
        elif source.kind is SourceKind.VARIABLE:
            variable = self.variables[source.name].index
            self.program.load_variable_rows(segment, register, variable, accumulator)
        else:
            self.program.load_accumulator_rows(segment, register, accumulator)

    def _emit_load(self, segment: int, source: Source, register: int) -> None:
        program = self.program
        if source.kind is SourceKind.INPUT:
            program.load_input(segment, register, int(source.name))
        elif source.kind is SourceKind.VARIABLE:
            program.load_variable(segment, register, self.variables[source.name].index)
        elif source.kind is SourceKind.CONSTANT:
            program.load_constant(segment, register, self._constant(source.name))
        elif source.kind is SourceKind.GRADIENT:
            program.load_accumulator(segment, register, self._accumulators[source.name])
        elif source.kind is SourceKind.SCALAR:
            program.load_scalar(segment, register, self._scalar(*split_scalar(source.name)))
        else:
            program.load_rng(segment, register, int(source.name or 0))

    def _constant(self, name: str) -> int:
        if name not in self._constants:
            self._constants[name] = self.program.add_constant(self._graph.constants[name])
        return self._constants[name]
