"""From segments, schedule and optimiser to a program of the engine.

This is the one place that speaks to the builder of `_C.Program`. What is decided once per model
is decided here or above; the engine only obeys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from poptorch_emu import _C
from poptorch_emu.compile.executable import VariableInfo
from poptorch_emu.compile.segment import Body, Instruction, Register, Segment
from poptorch_emu.compile.segments import SegmentedGraph
from poptorch_emu.config import CompileConfig
from poptorch_emu.enums import ReductionType
from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind, source_of
from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.schedule.schedule import Port, Schedule, link_depth
from poptorch_emu.trace.update_rule import WEIGHT, record_update
from poptorch_emu.update.config import LOSS_SCALING, OptimizerConfig
from poptorch_emu.update.rules import state_names

aten = torch.ops.aten

# The fake tensors of the graph are contiguous; what CPU kernels make may not be, and `reshape`
# copies where a view is impossible.
_SAFE_TWINS = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
}

_DEVICE = "cpu"


def state_variable(state: str, parameter: str) -> str:
    """Returns the name of an optimiser's state, in the form in which PopART names it."""
    return f"{state}___{parameter}"


class Lowering:
    """Builds one program; `variables` and `scalars` say how the host finds its way in it."""

    def __init__(
        self,
        graph: Graph,
        cut: SegmentedGraph,
        partition: Partition,
        schedule: Schedule,
        config: CompileConfig,
        optimizer: OptimizerConfig | None,
    ) -> None:
        self.program = _C.Program()
        self.variables: dict[str, VariableInfo] = {}
        self.scalars: dict[tuple[str, int], int] = {}
        self.num_outputs = 0
        self.written_inputs: list[int] = []
        self.segment_names: list[str] = []
        self._graph = graph
        self._cut = cut
        self._partition = partition
        self._schedule = schedule
        self._config = config
        self._optimizer = optimizer
        self._constants: dict[str, int] = {}
        self._accumulators: dict[str, int] = {}
        self._segments: dict[Port, int] = {}
        self._update_segments: list[int] = []

    def run(self, inputs: list[bool], parameters: tuple[str, ...]) -> None:
        """Fills the program.

        Args:
            inputs: for each host input whether it is cut into micro-batches.
            parameters: the trainable parameters, in the order the optimiser knows them.
        """
        for number, is_batched in enumerate(inputs):
            self.program.add_input(str(number), is_batched)
        self._add_model_variables()
        self._add_micro_batch_segments()
        self._add_links()
        self._add_results()
        if self._optimizer is not None:
            self._add_updates(self._optimizer, parameters)
        self.program.set_schedule(self._actions(), self._schedule.num_micro_batches)
        self.program.validate()

    def _add_model_variables(self) -> None:
        written = {sink.name for sink in self._graph.sinks if sink.kind is SinkKind.VARIABLE}
        for node in self._graph.sources:
            source = source_of(node)
            if source.kind is SourceKind.VARIABLE:
                value = node.meta["val"]
                self._add_variable(
                    source.name, tuple(value.shape), value.dtype, source.name in written
                )

    def _add_variable(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        is_per_replica: bool,
        initial: float | None = None,
    ) -> None:
        index = self.program.add_variable(name, list(shape), dtype, is_per_replica)
        self.variables[name] = VariableInfo(index, name, shape, dtype, is_per_replica, initial)

    def _add_micro_batch_segments(self) -> None:
        for port, segment in self._cut.segments.items():
            ipu = self._partition.ipu_of_stage[port[1]]
            self._segments[port] = self._emit(segment, ipu, _C.SegmentKind.MICRO_BATCH)

    def _add_links(self) -> None:
        for (producer, consumer), crossing in self._cut.crossings.items():
            source, target = self._cut.segments[producer], self._cut.segments[consumer]
            self.program.add_link(
                self._segments[producer],
                [source.registers[node] for node in crossing.nodes],
                self._segments[consumer],
                [target.registers[node] for node in crossing.nodes],
                link_depth(self._schedule, producer, consumer),
            )

    def _add_results(self) -> None:
        mode = _C.OutputMode(int(self._config.output_mode))
        period = self._config.output_return_period
        for sink, port, node in self._cut.results:
            segment, register = self._segments[port], self._cut.segments[port].registers[node]
            if sink.kind is SinkKind.OUTPUT:
                self.program.store_output(segment, register, mode, period)
                self.num_outputs += 1
            elif sink.kind is SinkKind.VARIABLE:
                self.program.store_variable(segment, register, self.variables[sink.name].index)
            elif sink.kind is SinkKind.GRADIENT:
                assert self._optimizer is not None, "gradients are computed for an optimiser only"
                accumulator = self.program.add_accumulator(
                    sink.name, self._optimizer.accum_type, self._config.is_running_mean
                )
                self._accumulators[sink.name] = accumulator
                self.program.accumulate(segment, register, accumulator)
        for sink, port, node in self._cut.results:
            if sink.kind is SinkKind.INPUT:
                segment, register = self._segments[port], self._cut.segments[port].registers[node]
                self.program.store_output(segment, register, mode, period)
                self.written_inputs.append(int(sink.name))

    def _add_updates(self, optimizer: OptimizerConfig, parameters: tuple[str, ...]) -> None:
        """Adds one segment for each IPU that updates the weights whose gradients end there."""
        segments = [Segment(f"update {ipu}") for ipu in range(self._schedule.num_ipus)]
        assigned: list[dict[int, str]] = [{} for _ in segments]
        templates: dict[tuple[int, torch.dtype], Graph] = {}
        for sink, port, _ in self._cut.results:
            if sink.kind is not SinkKind.GRADIENT:
                continue
            name = sink.name
            group = optimizer.group_of_parameter[parameters.index(name)]
            weight = self.variables[name]
            key = (group, weight.dtype)
            if key not in templates:
                scale = gradient_scale(self._config)
                templates[key] = record_update(optimizer, group, weight.dtype, scale)
            self._add_states(optimizer, group, weight)
            ipu = self._partition.ipu_of_stage[port[1]]
            binding = _Binding(name, group)
            results = segments[ipu].inline(templates[key], binding)
            for result, register in results.items():
                assigned[ipu][register] = binding.variable(result)
        for ipu, segment in enumerate(segments):
            segment.set_dying(set(assigned[ipu]))
            index = self._emit(segment, ipu, _C.SegmentKind.WINDOW)
            for register, name in assigned[ipu].items():
                self.program.store_variable(index, register, self.variables[name].index)
            self._update_segments.append(index)

    def _add_states(self, optimizer: OptimizerConfig, group: int, weight: VariableInfo) -> None:
        for spec in state_names(optimizer, optimizer.groups[group]):
            self._add_variable(
                state_variable(spec.name, weight.name),
                () if spec.is_scalar else weight.shape,
                spec.dtype,
                is_per_replica=False,
                initial=spec.initial,
            )

    def _scalar(self, name: str, group: int) -> int:
        if (name, group) not in self.scalars:
            assert self._optimizer is not None, "hyper-parameters belong to an optimiser"
            value = scalar_value(self._optimizer, name, group)
            self.scalars[name, group] = self.program.add_scalar(scalar_name(name, group), value)
        return self.scalars[name, group]

    def _actions(self) -> list[list[tuple[int, int]]]:
        return [
            [self._action(action) for action in self._schedule.actions(ipu)]
            for ipu in range(self._schedule.num_ipus)
        ]

    def _action(self, action: Action) -> tuple[int, int]:
        if action.kind is Kind.UPDATE:
            return self._update_segments[action.stage], 0
        return self._segments[action.kind, action.stage], action.micro_batch

    def _emit(self, segment: Segment, ipu: int, kind: _C.SegmentKind) -> int:
        index = self.program.add_segment(segment.name, ipu, kind)
        self.segment_names.append(segment.name)
        for source, register in segment.loads.items():
            self._emit_load(index, source, register)
        for instruction in segment.instructions:
            self.program.add_instruction(index, *_lowered(instruction))
        return index

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
            program.load_rng(segment, register)

    def _constant(self, name: str) -> int:
        if name not in self._constants:
            self._constants[name] = self.program.add_constant(self._graph.constants[name])
        return self._constants[name]


class _Binding:
    """Names the sources and results of an update's template for one parameter."""

    def __init__(self, parameter: str, group: int) -> None:
        self._parameter = parameter
        self._group = group

    def __call__(self, source: Source) -> Source:
        """Returns the program's source for one of the template."""
        if source.kind is SourceKind.SCALAR:
            return replace(source, name=scalar_name(source.name, self._group))
        if source.kind is SourceKind.VARIABLE:
            return replace(source, name=self._variable(source.name))
        if source.kind is SourceKind.GRADIENT:
            return replace(source, name=self._parameter)
        return source

    def variable(self, sink: Sink) -> str:
        """Returns the name of the variable that a result of the template goes to."""
        return self._variable(sink.name)

    def _variable(self, name: str) -> str:
        return self._parameter if name == WEIGHT else state_variable(name, self._parameter)


def scalar_name(name: str, group: int) -> str:
    """Returns the name of a group's hyper-parameter; the loss scaling belongs to all groups."""
    return f"{name}:{0 if name == LOSS_SCALING else group}"


def split_scalar(name: str) -> tuple[str, int]:
    """Returns hyper-parameter and group; the inverse of `scalar_name`."""
    hyper, _, group = name.partition(":")
    return hyper, int(group or 0)


def scalar_value(optimizer: OptimizerConfig, name: str, group: int) -> float:
    """Returns the present value of a hyper-parameter."""
    hyper = optimizer.loss_scaling if name == LOSS_SCALING else optimizer.groups[group][name]
    return hyper.value


def gradient_scale(config: CompileConfig) -> float:
    """Returns the factor between the accumulated gradient and the one the optimiser is given.

    Source: PopTorch's reduction of gradients; the sum over replicas is made by the engine.
    """
    if config.reduction_type is ReductionType.Sum:
        return 1.0
    replicas = config.replication_factor * config.num_processes
    accumulated = 1 if config.is_running_mean else config.gradient_accumulation
    return 1.0 / (replicas * accumulated)


def _lowered(instruction: Instruction) -> tuple[Any, ...]:
    """Returns the arguments with which the engine's builders add an instruction."""
    target = _SAFE_TWINS.get(instruction.target, instruction.target)
    record = instruction.record
    debug = _C.Debug(
        f"{record.scope}/{instruction.name}" if record.scope else instruction.name,
        record.place.block_id,
        record.place.stage,
        record.module,
        record.source,
    )
    return (
        target._schema.name,
        target._schema.overload_name,
        [_on_device(value) for value in instruction.args],
        {key: _on_device(value) for key, value in instruction.kwargs.items()},
        instruction.outputs,
        instruction.dies,
        debug,
        [_lowered_body(body) for body in instruction.bodies],
    )


def _lowered_body(body: Body) -> _C.Body:
    code = body.code
    lowered = _C.Body(code.name, code.num_registers, body.parameters, body.iteration, body.results)
    for instruction in code.instructions:
        lowered.add_instruction(*_lowered(instruction))
    return lowered


def _on_device(value: Any) -> Any:
    """Returns an argument as the engine takes it: registers and the real device."""
    if isinstance(value, Register):
        return _C.Register(value.index)
    if isinstance(value, torch.device):
        return torch.device(_DEVICE)
    if isinstance(value, (list, tuple)):
        return [_on_device(item) for item in value]
    return value
