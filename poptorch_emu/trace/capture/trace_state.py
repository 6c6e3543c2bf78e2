"""The state of one trace: fake tensors for the model's tensors, and the recorded graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx

from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind, source_of
from poptorch_emu.ir.record import NodeRecord, Phase
from poptorch_emu.log import logger
from poptorch_emu.structure import flatten_tensors
from poptorch_emu.torch_versions import (
    DisableTorchFunctionSubclass,
    FakeTensor,
    disable_current_modes,
    get_sequence_nr,
    start_autograd,
)
from poptorch_emu.trace.capture import added_gradients, hidden_tensors
from poptorch_emu.trace.capture.initial_gradient import InitialGradient, first_gradient
from poptorch_emu.trace.capture.origins import Origins
from poptorch_emu.trace.fakes.fake_tensors import FakeMaker
from poptorch_emu.trace.fakes.result_memo import ResultMemo
from poptorch_emu.trace.fakes.result_metadata import ResultMetadata
from poptorch_emu.trace.fakes.result_types import without_log_of_failures
from poptorch_emu.trace.model_state.module_state import HostTensor, keep_hooks
from poptorch_emu.trace.model_state.trained_tensors import TrainedTensors
from poptorch_emu.trace.operators import loss
from poptorch_emu.trace.operators.functions import FunctionMode
from poptorch_emu.trace.operators.static_forms import tolist
from poptorch_emu.trace.places import blocks, scopes
from poptorch_emu.trace.places.stages import StageResolver
from poptorch_emu.trace.pytorch import batch_counters, checkpoints
from poptorch_emu.trace.pytorch.autocast import Autocast
from poptorch_emu.trace.pytorch.casting import casts_mixed_types
from poptorch_emu.trace.pytorch.differentiation import differentiate
from poptorch_emu.trace.pytorch.fake_mode import FakeMode
from poptorch_emu.trace.pytorch.patches import patched
from poptorch_emu.trace.pytorch.static_settings import static_settings
from poptorch_emu.trace.pytorch.subclasses import made_in_forward
from poptorch_emu.trace.recording import regions
from poptorch_emu.trace.recording.recorder import IPU, Recorder
from poptorch_emu.trace.refusals import leniency, refusal
from poptorch_emu.trace.refusals.failure_text import in_users_terms
from poptorch_emu.trace.values import integer_state, value_guards
from poptorch_emu.trace.values.known_values import known_value, mark_write_backs
from poptorch_emu.trace.values.narrowing import Narrowing, narrowed_constant, type_on_ipu


class TraceState:
    """The state of one trace, and its steps.

    Attributes:
        host_tensors: parameters and buffers on the host, by name.
    """

    def __init__(self, config: CompileConfig, metadata: Mapping[str, ResultMetadata]) -> None:
        self.config = config
        self.graph = Graph()
        self.fake_mode = FakeMode()
        self.memo = ResultMemo(IPU, metadata)
        self._trained = TrainedTensors()
        self.origins = Origins()
        self.host_tensors: dict[str, torch.Tensor] = {}
        self.reads = value_guards.ValueReads(config, self.host_tensors)
        self.recorder = Recorder(
            self.graph,
            self.origins,
            Narrowing(),
            self.memo,
            self._trained.check,
            self.reads.read,
        )
        self._fakes = FakeMaker(IPU)
        self.regions = regions.Recording(
            self.recorder,
            self.fake_mode,
            config.is_training,
            config.num_sharers,
            is_apart=config.num_processes > 1 and not config.is_training,
            present_value=self.value_of,
        )
        self.stages = StageResolver(config.strategy)
        self._num_inputs = 0
        self.downgraded: set[Source] = set()
        self.first_sequence = get_sequence_nr()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Activates all modes and patches that a trace needs."""
        start_autograd()
        with ExitStack() as stack:
            stack.enter_context(in_users_terms())
            stack.enter_context(blocks.tracing(self.stages))
            stack.enter_context(regions.recording(self.regions))
            stack.enter_context(value_guards.reading(self.reads))
            stack.enter_context(patched(FakeTensor, tolist=tolist))
            stack.enter_context(scopes.closing())
            # The order matters: leaving inference mode enables autograd's threads again.
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
        """Returns the fake tensor on the IPU for a parameter or buffer."""
        with DisableTorchFunctionSubclass():
            value = tensor.value.detach()
        if any(groups.name == tensor.name for groups in self.config.weight_groups):
            value = value[0]
        kind = "parameter" if tensor.is_parameter else "buffer"
        name = f"{kind} {tensor.name}"
        dtype = type_on_ipu(value.dtype, name, is_parameter=tensor.is_parameter)
        fake = self._fakes.empty(self.fake_mode, value.shape, dtype)
        source = Source(SourceKind.VARIABLE, tensor.name)
        if not (dtype.is_floating_point or dtype.is_complex):
            source = Source(SourceKind.CONSTANT, tensor.name)
            self.downgraded.add(source)
            self.graph.constants[tensor.name] = narrowed_constant(value.clone())
        if tensor.is_parameter:  # Like `torch.nn.Parameter`, without a copy.
            fake.requires_grad_(tensor.value.requires_grad)
            fake._is_param = True
            if self.config.is_training:
                keep_hooks(tensor, fake)
                self._trained.add(tensor)
        self.host_tensors[tensor.name] = tensor.value
        node = self.recorder.add_source(source, fake, NodeRecord())
        if source.kind is SourceKind.CONSTANT:
            integer_state.mark(node)
        return fake

    def input_to_fake(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the fake tensor for one micro-batch of an input."""
        if value.requires_grad:
            logger.warning(
                "Input tensor has requires_grad=True set. This tensor will be detached because "
                "gradients do not flow back through inputs."
            )
        rows = value.detach()
        if rows.dim() > 0:
            rows = rows.narrow(0, 0, rows.size(0) // self.config.batch_factor)
        dtype = type_on_ipu(rows.dtype, f"input {self._num_inputs}")
        fake = self._fakes.empty(self.fake_mode, rows.shape, dtype)
        source = Source(SourceKind.INPUT, str(self._num_inputs))
        self.reads.add_input(source.name, value)
        self._num_inputs += 1
        self.recorder.add_source(source, fake, NodeRecord())
        return fake

    def run_forward(
        self, model: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the user's forward and records every operation."""
        autocast = Autocast(self.config.cast_rules, model, self.origins.modules)
        try:
            with FunctionMode(autocast), self.fake_mode, self.recorder:
                return model(*args, **kwargs)
        except RuntimeError as failure:
            if self.recorder.failure is None or "TorchScript interpreter" not in str(failure):
                raise
            raise self.recorder.failure.with_traceback(failure.__traceback__) from None

    def write_back(
        self, assigned: Mapping[str, torch.Tensor], fakes: Mapping[str, torch.Tensor]
    ) -> None:
        """Records copies into buffers for the values that `forward` assigned to their attributes.

        Args:
            assigned: assigned values, by the names of the buffers.
            fakes: fake tensors of parameters and buffers, by name.
        """
        with FunctionMode(), self.fake_mode, self.recorder, torch.no_grad():
            buffers = {name: self.recorder.read_first(fakes[name]) for name in assigned}
            num_before = len(self.graph.operations)
            for name, value in assigned.items():
                buffers[name].copy_(value)
        mark_write_backs(self.graph.operations[num_before:])

    def value_of(self, stand_in: torch.Tensor) -> torch.Tensor | None:
        """Returns the value of a fake tensor after the trace; None if it depends on inputs."""
        node = self.recorder.find(stand_in)
        if node is None:
            return None
        if node.op == "placeholder" and source_of(node).name in self.host_tensors:
            return self.host_tensors[source_of(node).name]
        grouped = {groups.name for groups in self.config.weight_groups}

        def value_of(source: fx.Node) -> torch.Tensor | None:
            value = self.host_tensors.get(source_of(source).name)
            if value is None or value.is_meta or source_of(source).name in grouped:
                return None
            with disable_current_modes():  # A trace may be active.
                return value.detach()

        return known_value(self.graph, node, value_of)

    def find_outputs(
        self, outputs: Any
    ) -> tuple[list[tuple[Sink, fx.Node]], dict[int, torch.Tensor]]:
        """Returns the nodes of the outputs, and the outputs that were never on the device."""
        hidden_tensors.check_outputs(outputs)
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

    def run_backward(
        self, value: torch.Tensor, trainable: dict[str, torch.Tensor], initial: InitialGradient
    ) -> list[tuple[Sink, fx.Node]]:
        """Differentiates the loss `value` and returns the gradient of each parameter."""
        if not value.requires_grad or not trainable:
            return []
        self.origins.phase = Phase.BACKWARD
        scales = initial.scales(self.recorder, self.fake_mode)
        leaves = tuple(trainable.values())
        with FunctionMode(), self.fake_mode, self.recorder:
            added_gradients.scale(leaves, scales)
            added = added_gradients.AddedGradients(value, leaves)
            with added:
                gradients = differentiate(value, first_gradient(value, scales), leaves, self.graph)
            totals = map(added.total, leaves, gradients)
            found = {name: each for name, each in zip(trainable, totals, strict=True)}
        results = []
        for name, gradient in found.items():
            if gradient is not None:
                node = self.recorder.find(gradient)
                if node is None:
                    raise refusal.gradient_of_body(name)
                results.append((Sink(SinkKind.GRADIENT, name), node))
        return results
