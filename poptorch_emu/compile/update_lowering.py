"""What each IPU runs at the end of a window, as values: segments, their links and new states.

Nothing here knows the engine; `lower.py` hands it over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from poptorch_emu.compile.executable import VariableInfo
from poptorch_emu.compile.hyper_parameters import scalar_name
from poptorch_emu.compile.segment import Register, Segment
from poptorch_emu.config import CompileConfig
from poptorch_emu.enums import ReductionType
from poptorch_emu.ir.graph import Graph, Sink, Source, SourceKind
from poptorch_emu.trace.clip_rule import record_clip, record_norm
from poptorch_emu.trace.update_rule import CLIP, WEIGHT, record_update
from poptorch_emu.update.config import OptimizerConfig
from poptorch_emu.update.rules import state_names


@dataclass(frozen=True)
class Gradient:
    """The gradient of a weight, where it is accumulated.

    Attributes:
        name: of the weight.
        ipu: that accumulates, and therefore updates.
        group: index of the optimiser's group.
    """

    name: str
    ipu: int
    group: int
    weight: VariableInfo


@dataclass(frozen=True)
class NewState:
    """A state that the optimiser keeps on the device."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    initial: float


@dataclass
class Part:
    """One segment of an update; `stores` names the variable that a register becomes."""

    code: Segment
    stores: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PartLink:
    """A value that one part sends to another, by the names of their segments."""

    producer: str
    source: int
    consumer: str
    target: int


class UpdatePlan:
    """The parts of an update in the order in which each IPU runs them."""

    def __init__(self, optimizer: OptimizerConfig, config: CompileConfig, num_ipus: int) -> None:
        self.parts: list[list[Part]] = [[] for _ in range(num_ipus)]
        self.links: list[PartLink] = []
        self.states: list[NewState] = []
        self._optimizer = optimizer
        self._scale = gradient_scale(config)
        self._templates: dict[tuple[int, torch.dtype], Graph] = {}

    def add(self, gradients: Sequence[Gradient]) -> None:
        """Plans the update of all weights, each on the IPU where its gradient ends."""
        norms = self._add_norms(gradients) if self._optimizer.clips else []
        for ipu, parts in enumerate(self.parts):
            update = Part(Segment(f"update {ipu}"))
            mine = [gradient for gradient in gradients if gradient.ipu == ipu]
            clip = self._add_clip(update.code, norms) if norms and mine else None
            for gradient in mine:
                self._update(update, gradient, clip)
            update.code.set_dying(set(update.stores))
            parts.append(update)

    def _add_norms(self, gradients: Sequence[Gradient]) -> list[tuple[str, int]]:
        """Plans a norm on each IPU that has gradients; returns its segment and register."""
        norms = []
        for ipu, parts in enumerate(self.parts):
            names = [gradient.name for gradient in gradients if gradient.ipu == ipu]
            if not names:
                continue
            code = Segment(f"norm {ipu}")
            template = record_norm(names, self._optimizer.accum_type, self._scale)
            (register,) = code.inline(template, lambda source: source).values()
            code.set_dying({register})
            norms.append((code.name, register))
            parts.append(Part(code))
        return norms

    def _add_clip(self, code: Segment, norms: Sequence[tuple[str, int]]) -> Register:
        """Plans that the norms of all IPUs arrive and become one factor, in order of the IPUs.

        Each IPU computes the factor for itself, from the same numbers and so with the same bits.
        """
        arrived = [Register(code.new_register()) for _ in norms]
        for (producer, source), target in zip(norms, arrived, strict=True):
            self.links.append(PartLink(producer, source, code.name, target.index))
        template = record_clip(len(norms), self._optimizer.max_grad_norm)
        (register,) = code.inline(template, lambda source: arrived[int(source.name)]).values()
        return Register(register)

    def _update(self, part: Part, gradient: Gradient, clip: Register | None) -> None:
        self._add_states(gradient)
        binding = _Binding(gradient, clip)
        results = part.code.inline(self._template(gradient), binding)
        for result, register in results.items():
            part.stores[register] = binding.variable(result)

    def _template(self, gradient: Gradient) -> Graph:
        key = (gradient.group, gradient.weight.dtype)
        if key not in self._templates:
            self._templates[key] = record_update(self._optimizer, *key, self._scale)
        return self._templates[key]

    def _add_states(self, gradient: Gradient) -> None:
        for spec in state_names(self._optimizer, self._optimizer.groups[gradient.group]):
            shape = () if spec.is_scalar else gradient.weight.shape
            name = state_variable(spec.name, gradient.name)
            self.states.append(NewState(name, shape, spec.dtype, spec.initial))


class _Binding:
    """Names the sources and results of an update's template for one weight."""

    def __init__(self, gradient: Gradient, clip: Register | None) -> None:
        self._gradient = gradient
        self._clip = clip

    def __call__(self, source: Source) -> Source | Register:
        """Returns what stands in the program for a source of the template."""
        if source == CLIP:
            assert self._clip is not None, "the template of an optimiser that clips needs a factor"
            return self._clip
        if source.kind is SourceKind.SCALAR:
            return replace(source, name=scalar_name(source.name, self._gradient.group))
        if source.kind is SourceKind.VARIABLE:
            return replace(source, name=self._variable(source.name))
        if source.kind is SourceKind.GRADIENT:
            return replace(source, name=self._gradient.name)
        return source

    def variable(self, sink: Sink) -> str:
        """Returns the name of the variable that a result of the template goes to."""
        return self._variable(sink.name)

    def _variable(self, name: str) -> str:
        weight = self._gradient.name
        return weight if name == WEIGHT else state_variable(name, weight)


def state_variable(state: str, parameter: str) -> str:
    """Returns the name of an optimiser's state, in the form in which PopART names it."""
    return f"{state}___{parameter}"


def gradient_scale(config: CompileConfig) -> float:
    """Returns the factor between the accumulated gradient and the one the optimiser is given.

    Source: PopTorch's reduction of gradients; the sum over replicas is made by the engine.
    """
    if config.reduction_type is ReductionType.Sum:
        return 1.0
    replicas = config.replication_factor * config.num_processes
    accumulated = 1 if config.is_running_mean else config.gradient_accumulation
    return 1.0 / (replicas * accumulated)
