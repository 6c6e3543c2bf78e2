"""Runs a model's `forward` once on fake tensors and records forward, loss and backward.

The recorded graph still contains operations that change their arguments; `passes/functional.py`
removes them. When `trace_forward` returns or raises, the user's module has its parameters and
buffers again, and tensors that `forward` stored elsewhere have values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import fx

from poptorch_emu import _C
from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Graph, Source, SourceKind, record_of, source_of
from poptorch_emu.ir.mutation import is_mutating, written_memory
from poptorch_emu.log import muted
from poptorch_emu.structure import flatten_tensors, rebuild
from poptorch_emu.tensor_bytes import bytes_of
from poptorch_emu.torch_versions import FakeTensor, FakeTensorMode, disable_current_modes
from poptorch_emu.trace.capture import assigned_buffers
from poptorch_emu.trace.capture.compared_captures import computed, shape_of, writes
from poptorch_emu.trace.capture.initial_gradient import InitialGradient, ScalingLimits
from poptorch_emu.trace.capture.trace_state import TraceState
from poptorch_emu.trace.fakes.result_memo import ResultMemo
from poptorch_emu.trace.fakes.result_metadata import ResultMetadata
from poptorch_emu.trace.model_state import new_state
from poptorch_emu.trace.model_state.held_numbers import HeldNumbers
from poptorch_emu.trace.model_state.module_state import (
    named_modules,
    on_ipu,
    reassigned_buffers,
    replace_buffer,
    warn_of_shared_memory,
)
from poptorch_emu.trace.model_state.number_search import values_in
from poptorch_emu.trace.operators import dynamic_slices, loss
from poptorch_emu.trace.pytorch import checkpoints
from poptorch_emu.trace.pytorch.host_draws import HostDraws
from poptorch_emu.trace.recording import left_tensors, regions
from poptorch_emu.trace.recording.left_tensors import LeftTensors
from poptorch_emu.trace.recording.recorder import IPU
from poptorch_emu.trace.values import integer_state
from poptorch_emu.trace.values.narrowing import warn_of_constants
from poptorch_emu.trace.values.value_guards import ValueGuards

_UNSCALED = InitialGradient()

# Maps a function over the input tensors, and returns positional and keyword arguments of a call.
ArgumentsOf = Callable[
    [Callable[[torch.Tensor], torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]
]


@dataclass
class Trace:
    """The record of one run of `forward` and, in training, of backward.

    Attributes:
        graph: the recorded operations.
        fake_mode: mode of the fake tensors in the graph.
        outputs: structure that `forward` returned, with tensors without values as leaves.
        host_outputs: outputs that were never on the device, by position.
        trainable: names of the parameters that have a gradient, in the model's order.
        host_functions: functions that the graph calls on the host, by name.
        batch_counts: number that a micro-batch adds to each counted buffer of integers.
        memo: metadata of the operations' results.
        guards: conditions on values of inputs under which the trace is valid.
        scaling_limits: limits of the loss scaling; None in inference.
    """

    graph: Graph
    fake_mode: FakeTensorMode
    outputs: Any = None
    host_outputs: dict[int, torch.Tensor] = field(default_factory=dict)
    trainable: tuple[str, ...] = ()
    host_functions: dict[str, regions.HostFunction] = field(default_factory=dict)
    batch_counts: dict[str, int] = field(default_factory=dict)
    memo: ResultMemo = field(default_factory=lambda: ResultMemo(IPU))
    guards: ValueGuards = field(default_factory=ValueGuards)
    scaling_limits: ScalingLimits | None = None


class Forward:
    """A recorded `forward`. Its backward is recorded on first use.

    Attributes:
        graph: operations that are recorded so far.
        outputs: structure that `forward` returned, with tensors without values as leaves.
        host_outputs: outputs that were never on the device, by position.
        results: nodes of the outputs.
        losses: marked losses with their nodes, in the order of their computation.
        batch_counts: number that a micro-batch adds to each counted buffer of integers.
        parameters: fake tensors of the trained parameters, by name.
        first_sequence: sequence number of autograd at the beginning of the trace.
        has_saved_tensor_hooks: whether hooks of the user change the tensors that autograd saves.
        resized: buffers with an assigned value of another shape.
        new_state: buffers that `forward` made.
        scaling_limits: limits of the loss scaling; None before `loss` was read.
    """

    scaling_limits: ScalingLimits | None = None

    def __init__(
        self,
        tracer: TraceState,
        outputs: Any,
        fakes: dict[str, torch.Tensor],
        initial_gradient: InitialGradient,
        model: torch.nn.Module,
        resized: Mapping[str, assigned_buffers.Resized],
        made: new_state.NewState,
        assigned: Mapping[str, fx.Node],
    ) -> None:
        self.graph = tracer.graph
        self.resized, self.new_state, self._assigned = resized, made, assigned
        self.first_sequence = tracer.first_sequence
        self.has_saved_tensor_hooks = tracer.origins.has_saved_tensor_hooks
        self.results, self.host_outputs = tracer.find_outputs(outputs)
        forms = map(_without_values, flatten_tensors(outputs))
        self.outputs = rebuild(outputs, forms, other=_on_host)
        self.losses = loss.take_losses(tracer.recorder.find)
        self.parameters = {name: fake for name, fake in fakes.items() if fake.requires_grad}
        self._tracer = tracer
        self._initial_gradient, self._model, self._fakes = initial_gradient, model, fakes
        self.batch_counts = integer_state.settle(
            self.graph,
            [node for _, node in self.results],
            tracer.recorder.known.lines_that_read,
            tracer.host_tensors,
        )
        counted = {Source(SourceKind.CONSTANT, name) for name in self.batch_counts}
        warn_of_constants(self.graph, tracer.downgraded - counted)

    @cached_property
    def loss(self) -> torch.Tensor:
        """The loss that is differentiated.

        Raises:
            Error: the model marks no loss, or several losses without a final one.
        """
        if not self.losses:
            raise loss.missing([node for _, node in self.results], type(self._model).forward)
        value, node = self.losses[loss.final_loss([node for _, node in self.losses])]
        loss.warn_of_lost_operations(node)
        loss.note(node)
        self.scaling_limits = ScalingLimits.of(value, record_of(node).source, self.parameters)
        self.scaling_limits.check(self._initial_gradient.scaling.value)
        return value

    @cached_property
    def backward_lines(self) -> tuple[str, ...]:
        """Lines of text that, with the operations of forward, determine those of backward.

        If code of the user runs in backward, backward is recorded on first use.

        Raises:
            Error: `loss` or `complete` raises it.
        """
        if not self._tracer.config.is_training:
            return ()
        parameters = list(self.parameters.values())
        lines, is_opaque = _C.list_autograd(self.loss, parameters, self.first_sequence)
        is_opaque |= any(parameter.grad is not None for parameter in parameters)
        if is_opaque or self.has_saved_tensor_hooks:
            return tuple(f"{sink}" for sink, _ in self.complete.graph.results)
        return tuple(lines)

    @property
    def capture(self) -> assigned_buffers.Capture:
        """The operations, with the nodes of all values that outlive the call."""
        results = [node for _, node in (*self.results, *self.losses)]
        return assigned_buffers.Capture(self.graph, results, self._assigned)

    def held_tensors(self) -> list[torch.Tensor]:
        """Returns the fake tensors that this object refers to, once for each reference."""
        losses = [value for value, _ in self.losses]
        looked_at = [vars(self)["loss"]] if "loss" in vars(self) else []
        recorded = self._tracer.recorder.tensors
        return [*self._fakes.values(), *self.parameters.values(), *losses, *looked_at, *recorded]

    @property
    def texts(self) -> list[tuple[Any, ...]]:
        """Texts of all operations that depend on more than constants and unchanged buffers."""
        written = {
            source_of(owner).name
            for node in filter(is_mutating, self.graph.operations)
            for owner in written_memory(node)
            if owner.op == "placeholder"
        }
        variables = {
            source_of(node).name
            for node in self.graph.sources
            if source_of(node).kind is SourceKind.VARIABLE
        }
        apart = variables - written - self.parameters.keys()
        ends = [node for _, node in (*self.results, *self.losses)]
        is_left_out = partial(writes, apart)
        texts = [*computed(self.graph, apart, self._description, ends)]
        for region in self.graph.regions.values():
            texts += computed(region, apart, is_left_out=is_left_out)
        return texts

    def _description(self, node: fx.Node) -> str:
        """Returns a digest of the value of a node that depends on constants and buffers alone."""
        value = self._tracer.value_of(node.meta["val"])
        if value is None:
            return f"{node.target} {shape_of(node)}"
        with disable_current_modes():
            data = bytes_of(value).numpy().tobytes()
        return f"{value.dtype} {shape_of(node)} {hashlib.blake2b(data).hexdigest()}"

    @property
    def new_metadata(self) -> dict[str, ResultMetadata]:
        """Metadata of all results for the next trace; empty if the memo has learned nothing new."""
        memo = self._tracer.memo
        return memo.metadata if memo.has_learned else {}

    @cached_property
    def complete(self) -> Trace:
        """The trace, with backward in training. Backward is recorded on first use.

        Raises:
            Error: the model has no loss, or backward cannot be captured.
        """
        tracer, gradients = self._tracer, []
        if tracer.config.is_training:
            # The user's functions that run in backward see the module as `forward` saw it.
            with tracer.active(), on_ipu(self._model, lambda tensor: self._fakes[tensor.name]):
                gradients = tracer.run_backward(self.loss, self.parameters, self._initial_gradient)
        self.graph.set_results([*self.results, *gradients])
        return Trace(
            self.graph,
            tracer.fake_mode,
            self.outputs,
            self.host_outputs,
            tuple(sink.name for sink, _ in gradients),
            tracer.regions.host_functions,
            self.batch_counts,
            tracer.memo,
            tracer.reads.guards(self.graph),
            self.scaling_limits,
        )

    @property
    def guards(self) -> ValueGuards:
        """Conditions on values of inputs under which the trace is valid."""
        is_guarded = self._tracer.config.max_guarded_programs > 0
        return self.complete.guards if is_guarded else ValueGuards()


def trace_forward(
    model: torch.nn.Module,
    arguments: ArgumentsOf,
    config: CompileConfig,
    initial_gradient: InitialGradient = _UNSCALED,
    hooks: tuple[Callable[[], None], Callable[[], None]] = (lambda: None, lambda: None),
    metadata: Mapping[str, ResultMetadata] | None = None,
) -> Forward:
    """Records one call of `model` for one micro-batch.

    Args:
        model: the user's module.
        arguments: maps a function over the input tensors, and returns the arguments of the call.
        config: configuration of the compilation.
        initial_gradient: gradient of the loss, the start of back-propagation in training.
        hooks: functions called before forward and at the end of the trace, even after errors.
        metadata: metadata of results from another trace, as far as they are known.

    Raises:
        Error: the model cannot be captured; the text names reason, line and remedy.
    """
    record = partial(_trace, model, arguments, config, initial_gradient, hooks, metadata)
    numbers, draws = HeldNumbers(model), HostDraws()

    def again() -> Forward:
        with draws.repeated():
            return record()

    forward = record(lambda first, left: _check_unread(model, first, left, again))
    if forward.resized or forward.new_state.made:
        forward = _with_new_buffers(model, forward, again)
    numbers.check_later_calls(lambda: forward.texts, lambda: again().texts)
    return forward


def _check_unread(
    model: torch.nn.Module, forward: Forward, left: LeftTensors, record: Callable[[], Forward]
) -> None:
    """Checks that a second call computes the same, without the tensors that have no value.

    Args:
        model: the user's module.
        forward: the first capture, whose fake tensors are still where it left them.
        left: the places of these tensors, and of those with values.
        record: captures the model again.

    Raises:
        Error: the second capture fails or computes something else.
    """
    after = values_in(model)
    try:
        with muted():
            is_same = not (left.known or left.unknown) or record().texts == forward.texts
    except Exception as failure:
        raise left_tensors.refused(left.unknown or left.known) from failure
    finally:
        after.restore()
    if not is_same:
        raise left_tensors.refused(left.unknown or left.known)
    if lost := {**left.unknown, **left.in_arguments}:
        left_tensors.warn(lost)


def _with_new_buffers(
    model: torch.nn.Module, forward: Forward, record: Callable[[], Forward]
) -> Forward:
    """Returns another capture, with the buffers that `forward` made, or whose shape it changed."""
    made = forward.new_state.made
    assigned_buffers.check_unread(forward.graph, forward.resized)
    before = {name: model.get_buffer(name) for name in forward.resized}
    try:
        for name, buffer in forward.resized.items():
            replace_buffer(model, name, buffer.value.to(before[name].dtype))
        again = record()
        changed = {
            name: assigned_buffers.Resized(value, is_known=True, is_made=True)
            for name, value in made.items()
        }
        assigned_buffers.check_equal(
            forward.capture,
            again.capture,
            {**changed, **forward.resized},
            {**again.new_state.made, **again.resized},
        )
    except BaseException:
        for name, value in before.items():
            replace_buffer(model, name, value)
        forward.new_state.undo()
        raise
    return again


def _trace(
    model: torch.nn.Module,
    arguments: ArgumentsOf,
    config: CompileConfig,
    initial_gradient: InitialGradient,
    hooks: tuple[Callable[[], None], Callable[[], None]],
    metadata: Mapping[str, ResultMetadata] | None,
    check: Callable[[Forward, LeftTensors], None] = lambda *_: None,
) -> Forward:
    """Records one call with the current buffers.

    Args:
        check: checks a capture that leaves tensors without values, before these are removed.
    """
    session = TraceState(config, metadata or {})
    if config.is_training:
        warn_of_shared_memory(model)
    left, ours = LeftTensors(model), list[torch.Tensor]()
    try:
        try:
            forward = _record(session, model, arguments, initial_gradient, hooks)
            assert forward.backward_lines is not None  # Runs the user's code in backward.
            assert forward.guards is not None  # Backward may have read values.
            ours = forward.held_tensors()
        finally:
            left.replace(session.value_of, session.graph, arguments(lambda tensor: tensor), ours)
        if left.known or left.unknown or left.in_arguments:
            check(forward, left)
        return forward
    finally:
        left.restore()


def _record(
    session: TraceState,
    model: torch.nn.Module,
    arguments: ArgumentsOf,
    initial_gradient: InitialGradient,
    hooks: tuple[Callable[[], None], Callable[[], None]],
) -> Forward:
    """Records `forward` and its assignments to buffers."""
    with session.active(), ExitStack() as cleanup:
        cleanup.callback(hooks[1])
        with (
            on_ipu(model, session.to_fake) as fakes,
            new_state.adopted(model, fakes, session.value_of, session.to_fake) as made,
            named_modules(model, session.origins.modules),
        ):
            fake_args, fake_kwargs = arguments(session.input_to_fake)
            hooks[0]()
            outputs = session.run_forward(model, fake_args, fake_kwargs)
            assigned = reassigned_buffers(model, fakes)
            resized = assigned_buffers.resized(assigned, fakes, made.first_assigned)
            kept = {name: value for name, value in assigned.items() if name not in resized}
            assigned_buffers.warn_of_assigned(model, kept)
            session.write_back(kept, fakes)
            found = {name: session.recorder.find(value) for name, value in assigned.items()}
        checkpoints.apply_marks(session.recorder.find)
        dynamic_slices.check_parts()
        if session.config.is_training:  # Inference may leave blocks of the loss out.
            session.stages.warn_of_unused()
        nodes = {name: node for name, node in found.items() if node is not None}
        return Forward(session, outputs, fakes, initial_gradient, model, resized, made, nodes)


def _without_values(value: torch.Tensor) -> torch.Tensor:
    """Returns a meta tensor like a fake tensor, or a tensor of the host itself."""
    if not isinstance(value, FakeTensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="meta")


def _on_host(value: Any) -> Any:
    """Returns the CPU in place of the IPU, because results arrive on the CPU."""
    is_ipu = isinstance(value, torch.device) and value.type == "ipu"
    return torch.device("cpu") if is_ipu else value
