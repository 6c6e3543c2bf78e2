"""Runs a model's `forward` once on fake tensors and records forward, loss and backward.

The result still contains operations that change their arguments; `passes/functional.py` removes
them. Nothing here knows schedules, and the user's module is as it was before when `trace_forward`
returns or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx

from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind
from poptorch_emu.ir.record import NodeRecord, Phase
from poptorch_emu.log import logger
from poptorch_emu.structure import flatten_tensors
from poptorch_emu.torch_versions import (
    DisableTorchFunctionSubclass,
    FakeTensor,
    FakeTensorMode,
    get_sequence_nr,
)
from poptorch_emu.trace import (
    batch_counters,
    blocks,
    checkpoints,
    dynamic_slices,
    hidden_outputs,
    leniency,
    loss,
    refusal,
    regions,
    scopes,
)
from poptorch_emu.trace.autocast import Autocast
from poptorch_emu.trace.casting import casts_mixed_types
from poptorch_emu.trace.differentiation import differentiate
from poptorch_emu.trace.failure_text import in_users_terms
from poptorch_emu.trace.fake_mode import FakeMode
from poptorch_emu.trace.fakes import FakeMaker
from poptorch_emu.trace.functions import FunctionMode
from poptorch_emu.trace.initial_gradient import InitialGradient, first_gradient
from poptorch_emu.trace.module_state import (
    HostTensor,
    keep_hooks,
    named_modules,
    on_ipu,
    reassigned_buffers,
    warn_of_shared_memory,
)
from poptorch_emu.trace.narrowing import (
    Narrowing,
    narrowed_constant,
    type_on_ipu,
    warn_of_constants,
)
from poptorch_emu.trace.origins import Origins
from poptorch_emu.trace.recorder import IPU, Recorder
from poptorch_emu.trace.result_memo import ResultMemo
from poptorch_emu.trace.result_metadata import ResultMetadata
from poptorch_emu.trace.result_types import without_log_of_failures
from poptorch_emu.trace.stages import StageResolver
from poptorch_emu.trace.static_settings import static_settings
from poptorch_emu.trace.subclasses import made_in_forward
from poptorch_emu.trace.trained_tensors import TrainedTensors

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
        outputs: what `forward` returned, with fake tensors as leaves.
        host_outputs: tensors among the outputs that never were on the device, by position.
        trainable: names of the parameters that got a gradient, in the model's order.
        host_functions: what the graph calls on the host, by name.
        batch_counts: by how much a micro-batch raises counters of batches, by name.
        memo: the metadata of the operations' results.
    """

    graph: Graph
    fake_mode: FakeTensorMode
    outputs: Any = None
    host_outputs: dict[int, torch.Tensor] = field(default_factory=dict)
    trainable: tuple[str, ...] = ()
    host_functions: dict[str, regions.HostFunction] = field(default_factory=dict)
    batch_counts: dict[str, int] = field(default_factory=dict)
    memo: ResultMemo = field(default_factory=lambda: ResultMemo(IPU))


class Forward:
    """A recorded `forward`, whose backward is recorded when it is asked for.

    Attributes:
        graph: the operations so far.
        outputs: what `forward` returned, with fake tensors as leaves.
        host_outputs: tensors among the outputs that never were on the device, by position.
        results: the outputs' nodes.
        losses: the marked losses with their nodes, in the order they were computed.
        batch_counts: by how much a micro-batch raises counters of batches, by name.
        parameters: the fake parameters that are trained, by name.
        first_sequence: the number that autograd would have given to its first node.
        has_saved_tensor_hooks: whether a function of the user changes what autograd keeps.
    """

    def __init__(
        self,
        tracer: _Tracer,
        outputs: Any,
        fakes: dict[str, torch.Tensor],
        initial_gradient: InitialGradient,
        model: torch.nn.Module,
    ) -> None:
        self.graph = tracer.graph
        self.outputs = outputs
        self.first_sequence = tracer.first_sequence
        self.has_saved_tensor_hooks = tracer.origins.has_saved_tensor_hooks
        self.results, self.host_outputs = tracer.find_outputs(outputs)
        self.losses = tracer.find_losses()
        self.parameters = {name: fake for name, fake in fakes.items() if fake.requires_grad}
        self._tracer = tracer
        self._initial_gradient, self._model, self._fakes = initial_gradient, model, fakes
        self.batch_counts = batch_counters.settle(
            self.graph, [node for _, node in self.results], tracer.recorder.lines_that_read
        )
        counted = {Source(SourceKind.CONSTANT, name) for name in self.batch_counts}
        warn_of_constants(self.graph, tracer.downgraded - counted)

    @cached_property
    def loss(self) -> torch.Tensor:
        """The loss that is differentiated.

        Raises:
            Error: there is none, or there are several.
        """
        value, node = self.losses[loss.final_loss([node for _, node in self.losses])]
        loss.warn_of_lost_operations(node)
        loss.note(node)
        return value

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
        )


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
    session = _Tracer(config, metadata or {})
    if config.is_training:
        warn_of_shared_memory(model)
    with session.active(), ExitStack() as cleanup:
        cleanup.callback(hooks[1])
        with on_ipu(model, session.to_fake) as fakes, named_modules(model, session.origins.modules):
            fake_args, fake_kwargs = arguments(session.input_to_fake)
            hooks[0]()
            outputs = session.run_forward(model, fake_args, fake_kwargs)
            session.write_back(reassigned_buffers(model, fakes))
        checkpoints.apply_marks(session.recorder.find)
        dynamic_slices.check_parts()
        if config.is_training:  # In evaluation a block of the loss may be missing on purpose.
            session.stages.warn_of_unused()
        return Forward(session, outputs, fakes, initial_gradient, model)


class _Tracer:
    """The state of one trace."""

    def __init__(self, config: CompileConfig, metadata: Mapping[str, ResultMetadata]) -> None:
        self.config = config
        self.graph = Graph()
        self.fake_mode = FakeMode()
        self.memo = ResultMemo(IPU, metadata)
        self._trained = TrainedTensors()
        self.origins = Origins()
        self.recorder = Recorder(
            self.graph, self.origins, Narrowing(), self.memo, self._trained.check
        )
        self._fakes = FakeMaker(IPU)
        self.regions = regions.Recording(
            self.recorder, self.fake_mode, config.is_training, config.replication_factor
        )
        self.stages = StageResolver(config.strategy)
        self._num_inputs = 0
        self.downgraded: set[Source] = set()
        self.first_sequence = get_sequence_nr()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Everything that must surround a trace."""
        with ExitStack() as stack:
            stack.enter_context(in_users_terms())
            stack.enter_context(blocks.tracing(self.stages))
            stack.enter_context(regions.recording(self.regions))
            stack.enter_context(scopes.closing())
            # In this order: leaving inference mode allows autograd threads of its own again.
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(casts_mixed_types())
            stack.enter_context(static_settings())
            stack.enter_context(batch_counters.cumulative_averages())
            stack.enter_context(made_in_forward())
            stack.enter_context(checkpoints.marks_checkpointed_calls())
            stack.enter_context(without_log_of_failures())
            leniency.start()
            loss.start_marks()
            stack.callback(loss.take_marks)
            checkpoints.start_marks()
            stack.callback(checkpoints.take_marks)
            yield

    def to_fake(self, tensor: HostTensor) -> torch.Tensor:
        """Returns the stand-in on the IPU of a parameter or buffer."""
        with DisableTorchFunctionSubclass():
            value = tensor.value.detach()
        if any(groups.name == tensor.name for groups in self.config.weight_groups):
            value = value[0]
        fake = self._fake_like(value)
        source = Source(SourceKind.VARIABLE, tensor.name)
        if not value.is_floating_point():
            source = Source(SourceKind.CONSTANT, tensor.name)
            self.downgraded.add(source)
            self.graph.constants[tensor.name] = narrowed_constant(value.clone())
        if tensor.is_parameter:  # As `torch.nn.Parameter` has it, without the copy that it makes.
            fake.requires_grad_(tensor.value.requires_grad)
            fake._is_param = True
            if self.config.is_training:
                keep_hooks(tensor, fake)
                self._trained.add(tensor)
        self.recorder.add_source(source, fake, NodeRecord())
        return fake

    def input_to_fake(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the stand-in of one micro-batch of an input."""
        if value.requires_grad:
            logger.warning(
                "Input tensor has requires_grad=True set. This tensor will be detached because "
                "gradients do not flow back through inputs."
            )
        rows = value.detach()
        if rows.dim() > 0:
            rows = rows.narrow(0, 0, rows.size(0) // self.config.batch_factor)
        fake = self._fake_like(rows)
        source = Source(SourceKind.INPUT, str(self._num_inputs))
        self._num_inputs += 1
        self.recorder.add_source(source, fake, NodeRecord())
        return fake

    def run_forward(
        self, model: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the user's forward; every operation is recorded."""
        autocast = Autocast(self.config.cast_rules, model, self.origins.modules)
        try:
            with FunctionMode(autocast), self.fake_mode, self.recorder:
                return model(*args, **kwargs)
        except RuntimeError as failure:
            if self.recorder.failure is None or "TorchScript interpreter" not in str(failure):
                raise
            raise self.recorder.failure.with_traceback(failure.__traceback__) from None

    def write_back(self, assigned: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Records that buffers take the values that `forward` assigned to their attributes."""
        with FunctionMode(), self.fake_mode, self.recorder, torch.no_grad():
            for buffer, value in assigned.values():
                buffer.copy_(value)

    def find_outputs(
        self, outputs: Any
    ) -> tuple[list[tuple[Sink, fx.Node]], dict[int, torch.Tensor]]:
        """Returns the nodes of the outputs, and those outputs that never were on the device."""
        hidden_outputs.check(outputs)
        results, host_outputs = [], {}
        for index, value in enumerate(flatten_tensors(outputs)):
            node = self.recorder.node_of_output(value)
            if node is not None:
                results.append((Sink(SinkKind.OUTPUT, str(index)), node))
            elif isinstance(value, FakeTensor) and value.device.type == "ipu":
                raise refusal.foreign_tensor(value)
            else:
                refusal.warn_of_host_output(value)
                host_outputs[index] = value
        return results, host_outputs

    def find_losses(self) -> list[tuple[torch.Tensor, fx.Node]]:
        """Returns the marked losses that were recorded."""
        return loss.take_losses(self.recorder.find)

    def run_backward(
        self, value: torch.Tensor, trainable: dict[str, torch.Tensor], initial: InitialGradient
    ) -> list[tuple[Sink, fx.Node]]:
        """Differentiates the loss `value` and returns the gradient of each parameter."""
        if not value.requires_grad or not trainable:
            return []
        self.origins.phase = Phase.BACKWARD
        scales = initial.scales(self.recorder, self.fake_mode)
        with FunctionMode(), self.fake_mode, self.recorder:
            gradients = differentiate(
                value, first_gradient(value, scales), tuple(trainable.values())
            )
        results = []
        for name, gradient in zip(trainable, gradients, strict=True):
            if gradient is not None:
                refusal.check_gradient(name, gradient)
                node = self.recorder.find(gradient)
                assert node is not None, f"the gradient of {name} was not recorded"
                results.append((Sink(SinkKind.GRADIENT, name), node))
        return results

    def _fake_like(self, value: torch.Tensor) -> torch.Tensor:
        return self._fakes.empty(self.fake_mode, value.shape, type_on_ipu(value.dtype))
