"""Runs a model's `forward` once on fake tensors and records forward, loss and backward.

The result still contains operations that change their arguments; `passes/functional.py` removes
them. Nothing here knows schedules. When `trace_forward` returns or raises, the module of the user
has its parameters and buffers again, and what `forward` left outside has values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from poptorch_emu import _C
from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Graph, Source, SourceKind
from poptorch_emu.structure import flatten_tensors, rebuild
from poptorch_emu.torch_versions import FakeTensor, FakeTensorMode
from poptorch_emu.trace import (
    assigned_buffers,
    checkpoints,
    dynamic_slices,
    integer_state,
    loss,
    new_state,
    regions,
)
from poptorch_emu.trace.initial_gradient import InitialGradient
from poptorch_emu.trace.left_tensors import LeftTensors
from poptorch_emu.trace.module_state import (
    named_modules,
    on_ipu,
    reassigned_buffers,
    replace_buffer,
    warn_of_shared_memory,
)
from poptorch_emu.trace.narrowing import warn_of_constants
from poptorch_emu.trace.recorder import IPU
from poptorch_emu.trace.result_memo import ResultMemo
from poptorch_emu.trace.result_metadata import ResultMetadata
from poptorch_emu.trace.trace_state import TraceState
from poptorch_emu.trace.value_guards import ValueGuards

_UNSCALED = InitialGradient()

# From a function of each input tensor to the positional and the keyword arguments of a call.
ArgumentsOf = Callable[
    [Callable[[torch.Tensor], torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]
]


@dataclass
class Trace:
    """What one run of `forward` (and, in training, of backward) came down to.

    Attributes:
        graph: the recorded operations.
        fake_mode: the mode that the graph's fake tensors belong to.
        outputs: a copy of what `forward` returned, with tensors of no values as leaves.
        host_outputs: tensors among the outputs that never were on the device, by position.
        trainable: names of the parameters that got a gradient, in the model's order.
        host_functions: what the graph calls on the host, by name.
        batch_counts: how much a micro-batch adds to buffers of integers, by name.
        memo: the metadata of the operations' results.
        guards: for which values of inputs the trace holds.
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


class Forward:
    """A recorded `forward`, whose backward is recorded when it is asked for.

    Attributes:
        graph: the operations so far.
        outputs: a copy of what `forward` returned, with tensors of no values as leaves.
        host_outputs: tensors among the outputs that never were on the device, by position.
        results: the outputs' nodes.
        losses: the marked losses with their nodes, in the order they were computed.
        batch_counts: how much a micro-batch adds to buffers of integers, by name.
        parameters: the fake parameters that are trained, by name.
        first_sequence: the number that autograd would have given to its first node.
        has_saved_tensor_hooks: whether a function of the user changes what autograd keeps.
        resized: buffers that got values of another shape.
    """

    def __init__(
        self,
        tracer: TraceState,
        outputs: Any,
        fakes: dict[str, torch.Tensor],
        initial_gradient: InitialGradient,
        model: torch.nn.Module,
        resized: Mapping[str, assigned_buffers.Resized],
    ) -> None:
        self.graph = tracer.graph
        self.resized = resized
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
            Error: there is none, or there are several.
        """
        if not self.losses:
            raise loss.missing([node for _, node in self.results], type(self._model).forward)
        value, node = self.losses[loss.final_loss([node for _, node in self.losses])]
        loss.warn_of_lost_operations(node)
        loss.note(node)
        return value

    @cached_property
    def backward_lines(self) -> tuple[str, ...]:
        """What decides, beside the operations of forward, on those of backward; a line each.

        Where code of the user takes part in backward, that is recorded at the first look.

        Raises:
            Error: as for `loss` and `complete`.
        """
        if not self._tracer.config.is_training:
            return ()
        parameters = list(self.parameters.values())
        lines, is_opaque = _C.list_autograd(self.loss, parameters, self.first_sequence)
        is_opaque |= any(parameter.grad is not None for parameter in parameters)
        if is_opaque or self.has_saved_tensor_hooks:
            return tuple(f"{sink}" for sink, _ in self.complete.graph.results)
        return tuple(lines)

    def held_tensors(self) -> list[torch.Tensor]:
        """Returns the stand-ins that this holds, as often as it does."""
        losses = [value for value, _ in self.losses]
        looked_at = [vars(self)["loss"]] if "loss" in vars(self) else []
        recorded = self._tracer.recorder.tensors
        return [*self._fakes.values(), *self.parameters.values(), *losses, *looked_at, *recorded]

    @property
    def new_metadata(self) -> dict[str, ResultMetadata]:
        """The metadata of all results, for the next trace; none, if all of it was given."""
        memo = self._tracer.memo
        return memo.metadata if memo.has_learned else {}

    @cached_property
    def complete(self) -> Trace:
        """The trace, with backward in training; recorded at the first look.

        Raises:
            Error: there is no loss, or backward cannot be captured.
        """
        tracer, gradients = self._tracer, []
        if tracer.config.is_training:
            # Functions of the user that run in backward find the module as `forward` did.
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
        )

    @property
    def guards(self) -> ValueGuards:
        """For which values of inputs the trace holds."""
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
        arguments: makes positional and keyword arguments from a function of each input tensor.
        config: what is compiled.
        initial_gradient: with what back-propagation starts, in training.
        hooks: called before forward and at the end of the trace, even after an error.
        metadata: of the operations' results, as far as it is known from another trace.

    Raises:
        Error: the model cannot be captured; the text says why, where, and what to do.
    """
    record = partial(_trace, model, arguments, config, initial_gradient, hooks, metadata)
    forward = record()
    if not forward.resized:
        return forward
    assigned_buffers.check_unread(forward.graph, forward.resized)
    before = {name: model.get_buffer(name) for name in forward.resized}
    try:
        for name, buffer in forward.resized.items():
            replace_buffer(model, name, buffer.value.to(before[name].dtype))
        again = record()
        assigned_buffers.check_equal(forward.graph, again.graph, forward.resized, again.resized)
    except BaseException:
        for name, value in before.items():
            replace_buffer(model, name, value)
        raise
    return again


def _trace(
    model: torch.nn.Module,
    arguments: ArgumentsOf,
    config: CompileConfig,
    initial_gradient: InitialGradient,
    hooks: tuple[Callable[[], None], Callable[[], None]],
    metadata: Mapping[str, ResultMetadata] | None,
) -> Forward:
    """Records one call, with the buffers as they are."""
    session = TraceState(config, metadata or {})
    if config.is_training:
        warn_of_shared_memory(model)
    left, ours = LeftTensors(model), list[torch.Tensor]()
    try:
        forward = _record(session, model, arguments, initial_gradient, hooks)
        assert forward.backward_lines is not None  # Now code of the user has run in backward, too.
        assert forward.guards is not None  # Backward may have read values, too.
        ours = forward.held_tensors()
        return forward
    finally:
        left.replace(session.value_of, session.graph, arguments(lambda tensor: tensor), ours)


def _record(
    session: TraceState,
    model: torch.nn.Module,
    arguments: ArgumentsOf,
    initial_gradient: InitialGradient,
    hooks: tuple[Callable[[], None], Callable[[], None]],
) -> Forward:
    """Records `forward`."""
    with session.active(), ExitStack() as cleanup:
        cleanup.callback(hooks[1])
        with (
            on_ipu(model, session.to_fake) as fakes,
            new_state.adopted(model, fakes, session.value_of, session.to_fake) as first_assigned,
            named_modules(model, session.origins.modules),
        ):
            fake_args, fake_kwargs = arguments(session.input_to_fake)
            hooks[0]()
            outputs = session.run_forward(model, fake_args, fake_kwargs)
            assigned = reassigned_buffers(model, fakes)
            resized = assigned_buffers.resized(assigned, fakes, first_assigned)
            kept = {name: value for name, value in assigned.items() if name not in resized}
            assigned_buffers.warn_of_assigned(model, kept)
            session.write_back(kept, fakes)
        checkpoints.apply_marks(session.recorder.find)
        dynamic_slices.check_parts()
        if session.config.is_training:  # Else a block of the loss may be missing on purpose.
            session.stages.warn_of_unused()
        return Forward(session, outputs, fakes, initial_gradient, model, resized)


def _without_values(value: torch.Tensor) -> torch.Tensor:
    """Returns what a stand-in looks like; what the host has is itself."""
    if not isinstance(value, FakeTensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="meta")


def _on_host(value: Any) -> Any:
    """Returns the device of results in place of that of their stand-ins."""
    is_ipu = isinstance(value, torch.device) and value.type == "ipu"
    return torch.device("cpu") if is_ipu else value
