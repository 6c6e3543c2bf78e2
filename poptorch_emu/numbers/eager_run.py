"""Runs one window in plain PyTorch and records the result of each operation.

The model is the user's, differentiated by autograd on the CPU. Only random numbers come from the
engine's run, so that dropout drops the same elements.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from poptorch_emu.compile.compiler import Request
from poptorch_emu.config import group_of_replica
from poptorch_emu.enums import ReductionType
from poptorch_emu.ir.evaluate import in_own_types
from poptorch_emu.ir.record import BEFORE_FIRST_BLOCK, Phase
from poptorch_emu.numbers.engine_run import Start, num_places
from poptorch_emu.numbers.graph_values import draws, is_worth_seeing, value_of_call
from poptorch_emu.numbers.run import (
    FIRST,
    Direction,
    Position,
    Progress,
    Sink,
    given,
    gradient_name,
    named,
    unseen,
    updated_name,
)
from poptorch_emu.torch_versions import TorchDispatchMode, pytree
from poptorch_emu.trace.capture.origins import Origins
from poptorch_emu.trace.model_state.module_state import named_modules
from poptorch_emu.trace.operators import loss
from poptorch_emu.trace.operators.loss_functions import LOSS_FUNCTIONS, LOSS_OPERATORS

Gradients = Mapping[str, torch.Tensor]
# Applies one update of the optimiser to a module with the gradients given.
Step = Callable[[torch.nn.Module, Gradients], None]
# Yields the random values that the engine drew at a position, with their modules, in forward order.
Drawn = Callable[[Position], Iterator[tuple[str, torch.Tensor]]]

# Source: PopTorch's numeric types: the device has no 64-bit floating point.
_NARROW = {torch.float64: torch.float32}
_NARROW_TYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})


@dataclass(frozen=True)
class EagerRequest:
    """A run to be done in plain PyTorch.

    Attributes:
        request: model and inputs of one window.
        start: weights and state at the start of the window.
        drawn: function that yields the engine's random values at a position.
        buffers: names of the buffers that forward writes.
        step: function that applies the update; `None` if no optimiser of `torch.optim` does the
            same.
        float_type: type that replaces every narrower floating-point type; `None` to keep the types.
    """

    request: Request
    start: Start
    drawn: Drawn
    buffers: frozenset[str]
    step: Step | None = None
    float_type: torch.dtype | None = None


def run_eager(asked: EagerRequest, sink: Sink, progress: Progress = unseen) -> None:
    """Runs a window in plain PyTorch, gives values to `sink`, and counts positions."""
    _EagerWindow(asked, sink).run(progress)


class _EagerWindow:
    def __init__(self, asked: EagerRequest, sink: Sink) -> None:
        self._asked, self._sink = asked, sink
        self._config = asked.request.config
        self._model = copy.deepcopy(asked.request.model)
        self._take(asked.start.weights)
        if asked.float_type is not None:
            self._model.to(asked.float_type)
        self._watch = _Watch(sink, asked.float_type)
        self._numbers: dict[str, int] = {}
        self._gradients: dict[str, torch.Tensor] = {}

    def run(self, progress: Progress) -> None:
        """Runs all micro-batches of all replicas, then the update."""
        config = self._config
        for name, tensor in self._asked.start.weights.items():
            if name in self._asked.buffers:
                continue
            self._sink.add(self._number(name, given(name, tensor)), FIRST, tensor)
        own = [self._buffers() for _ in range(config.replication_factor)]
        count = num_places(config)
        with progress("Plain PyTorch", count) as on_micro_batch:
            for micro_batch in range(count // len(own)):
                for replica, buffers in enumerate(own):
                    self._take(buffers)
                    self._run_micro_batch((micro_batch, replica))
                    own[replica] = self._buffers()
                    on_micro_batch()
        if self._gradients and self._asked.step is not None and self._asked.float_type is None:
            self._update()

    def _run_micro_batch(self, position: Position) -> None:
        args, kwargs = self._asked.request.arguments(lambda tensor: self._rows(tensor, position))
        for name, tensor in self._buffers().items():
            self._sink.add(self._number(name, given(name, tensor)), position, tensor)
        self._watch.begin(position, self._asked.drawn(position))
        with self._running() as origins, _Losses(), self._watch:
            self._model(*args, **kwargs)
        marks = loss.take_marks()
        if self._config.is_training and marks and marks[-1][0].requires_grad:
            self._differentiate(marks[-1][0], position, origins)

    @contextmanager
    def _running(self) -> Iterator[Origins]:
        origins = self._watch.origins = _origins()
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(torch.set_grad_enabled(self._config.is_training))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(in_own_types())
            stack.enter_context(named_modules(self._model, origins.modules))
            loss.start_marks()
            yield origins

    def _differentiate(self, value: torch.Tensor, position: Position, origins: Origins) -> None:
        optimizer = self._asked.request.optimizer
        scaling = 1.0 if optimizer is None else optimizer.loss_scaling.value
        leaves = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        origins.phase = Phase.BACKWARD
        with self._watch, torch.autograd.set_multithreading_enabled(False):
            first = torch.full_like(value, scaling)
            found = torch.autograd.grad(value, [*leaves.values()], first, allow_unused=True)
        for name, gradient in zip(leaves, found, strict=True):
            if gradient is not None:
                title = gradient_name(name)
                number = self._number(title, named(title, Direction.BACKWARD, gradient))
                self._sink.add(number, position, gradient)
                wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
                total = self._gradients.get(name)
                self._gradients[name] = wide if total is None else total + wide

    def _update(self) -> None:
        config, optimizer = self._config, self._asked.request.optimizer
        assert optimizer is not None and self._asked.step is not None, "a training model"
        divisor = optimizer.loss_scaling.value
        if config.reduction_type is not ReductionType.Sum:
            divisor *= config.gradient_accumulation * config.replication_factor
        self._asked.step(self._model, {n: g / divisor for n, g in self._gradients.items()})
        parameters = dict(self._model.named_parameters())
        for name in self._gradients:
            title = updated_name(name)
            tensor = parameters[name].detach()
            self._sink.add(self._number(title, named(title, Direction.UPDATE, tensor)), FIRST,
                           tensor)  # fmt: skip

    def _rows(self, tensor: torch.Tensor, position: Position) -> torch.Tensor:
        """Returns the rows of an input that a replica reads in a micro-batch."""
        config, value = self._config, tensor.detach()
        if value.dim() > 0:
            micro_batch, replica = position
            groups = group_of_replica(
                config.input_group_type, config.input_group_size, config.replication_factor
            )
            size = value.size(0) // config.batch_factor
            number = micro_batch * config.num_input_groups + groups[replica]
            value = value.narrow(0, number * size, size)
        dtype = _NARROW.get(value.dtype, value.dtype)
        if self._asked.float_type is not None and value.is_floating_point():
            dtype = self._asked.float_type
        return value.to(dtype).clone()

    def _buffers(self) -> dict[str, torch.Tensor]:
        found = dict(self._model.named_buffers())
        return {name: found[name].clone() for name in sorted(self._asked.buffers & found.keys())}

    def _take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        own = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        with torch.no_grad():
            for name in own.keys() & tensors.keys():
                own[name].copy_(tensors[name])

    def _number(self, key: str, value: Any) -> int:
        if key not in self._numbers:
            self._numbers[key] = self._sink.declare(value)
        return self._numbers[key]


def _origins() -> Origins:
    return Origins(lambda operation, module: BEFORE_FIRST_BLOCK)


class _Losses(TorchFunctionMode):
    """Marks the results of built-in losses, as tracing does."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs `func` and marks its result if it is a loss."""
        result = func(*args, **(kwargs or {}))
        if func in LOSS_FUNCTIONS or func in LOSS_OPERATORS:
            loss.mark(result if isinstance(result, torch.Tensor) else result[0], func.__name__)
        return result


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records each operation that runs below autograd."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, sink: Sink, float_type: torch.dtype | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.origins = _origins()
        self._sink, self._float_type = sink, float_type
        self._numbers: dict[Any, int] = {}
        self._seen: Counter[Any] = Counter()
        self._position = FIRST
        self._drawn: defaultdict[Any, deque[torch.Tensor]] = defaultdict(deque)

    def begin(self, position: Position, drawn: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Starts a micro-batch, with the random values that the engine drew there."""
        self._position = position
        self._drawn.clear()
        for module, tensor in drawn:
            self._drawn[module, tensor.shape].append(tensor)
        self._seen.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs `func` and records its results."""
        kwargs = kwargs or {}
        if self._float_type is not None:
            args, kwargs = pytree.tree_map(self._widened, (args, kwargs))
        result = func(*args, **kwargs)
        record = self.origins(str(func))
        results = result if isinstance(result, (tuple, list)) else (result,)
        if draws(func, args, kwargs):
            self._replace_drawn(func, args, results, record.module)
        if is_worth_seeing(func):
            self._note(func, (args, kwargs), results, record)
        return result

    def _replace_drawn(
        self, func: Any, args: tuple[Any, ...], results: Sequence[Any], module: str
    ) -> None:
        """Overwrites PyTorch's random values in a module with those of the engine."""
        if func is torch.ops.aten.rrelu_with_noise.default:
            # The operator returns its random slopes in `slopes`, which backward reads; slopes of
            # positive values are 1.
            value, slopes = args[:2]
            rows = self._drawn.get((module, value.shape))
            if rows:
                slopes.copy_(torch.where(value > 0, torch.ones_like(slopes), rows.popleft()))
                results[0].copy_(value * slopes)
            return
        for tensor in reversed(results):
            known = isinstance(tensor, torch.Tensor) and self._drawn.get((module, tensor.shape))
            if known:
                tensor.copy_(known.popleft())
                return

    def _note(self, func: Any, arguments: Any, results: Sequence[Any], record: Any) -> None:
        for index, tensor in enumerate(results):
            if not isinstance(tensor, torch.Tensor):
                continue
            value = value_of_call(func, arguments, record, index, tensor)
            key = value.kind, index, value.direction, value.module, value.dtype, value.shape
            self._seen[key] += 1
            numbered = *key, self._seen[key]
            if numbered not in self._numbers:
                self._numbers[numbered] = self._sink.declare(value)
            self._sink.add(self._numbers[numbered], self._position, tensor)

    def _widened(self, value: Any) -> Any:
        is_narrow = isinstance(value, torch.dtype) and value in _NARROW_TYPES
        return self._float_type if is_narrow else value
