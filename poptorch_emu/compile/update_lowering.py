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
from poptorch_emu.compile.sharding import Sharding, sharding_of
from poptorch_emu.config import CompileConfig
from poptorch_emu.enums import ReductionType
from poptorch_emu.ir.graph import Graph, Sink, Source, SourceKind
from poptorch_emu.passes import stochastic_rounding
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
        number: of the weight among all parameters.
    """

    name: str
    ipu: int
    group: int
    weight: VariableInfo
    number: int


@dataclass
class Part:
    """One segment of an update.

    Attributes:
        runners: the replicas that run it: one for all, one for each group, or each.
        reductions: weights whose gradients the runners add up over their group first.
        stores: the variable that a register becomes.
        is_sharded: whether tensors stand for the runner's part of them.
    """

    code: Segment
    runners: tuple[int, ...] = (0,)
    reductions: tuple[str, ...] = ()
    stores: dict[int, str] = field(default_factory=dict)
    is_sharded: bool = False


@dataclass(frozen=True)
class PartLink:
    """A value that one part sends to another, by the names of their segments."""

    producer: str
    source: int
    consumer: str
    target: int


class UpdatePlan:
    """The parts of an update in the order in which each IPU runs them.

    Attributes:
        states: what the optimiser keeps on the device; numbered by who adds them to the program.
        sharded_variables: names of those that each replica holds a part of.
        sharded_accumulators: weights whose accumulator each replica holds a part of.
    """

    def __init__(self, optimizer: OptimizerConfig, config: CompileConfig, num_ipus: int) -> None:
        self.parts: list[list[Part]] = [[] for _ in range(num_ipus)]
        self.links: list[PartLink] = []
        self.states: list[VariableInfo] = []
        self.sharded_variables: list[str] = []
        self.sharded_accumulators: list[str] = []
        self._optimizer = optimizer
        self._config = config
        self._scale = gradient_scale(config)
        self._everyone = tuple(range(config.replication_factor))
        self._templates: dict[tuple[int, torch.dtype, int], Graph] = {}

    def add(self, gradients: Sequence[Gradient]) -> None:
        """Plans the update of all weights, each on the IPU where its gradient ends."""
        shardings = {g.name: self._add_sharding(g.weight) for g in gradients}
        self._add_reductions(gradients)
        norms = self._add_norms(gradients) if self._optimizer.clips else []
        for ipu, parts in enumerate(self.parts):
            updates: dict[tuple[tuple[int, ...], bool], Part] = {}
            self._part(updates, f"update {ipu}", (0,), is_sharded=False)
            clips: dict[str, Register] = {}
            for gradient in gradients:
                if gradient.ipu != ipu:
                    continue
                sharding = shardings[gradient.name]
                runners = self._everyone if sharding.is_active else gradient.weight.leaders
                part = self._part(updates, f"update {ipu}", runners, sharding.is_active)
                if norms and part.code.name not in clips:
                    clips[part.code.name] = self._add_clip(part.code, norms)
                self._update(part, gradient, sharding, clips.get(part.code.name))
            for part in updates.values():
                part.code.set_dying(set(part.stores))
            parts.extend(updates.values())

    def _part(
        self,
        parts: dict[tuple[tuple[int, ...], bool], Part],
        name: str,
        runners: tuple[int, ...],
        is_sharded: bool,
    ) -> Part:
        """Returns the part for these runners, a new one if there is none."""
        key = (runners, is_sharded)
        if key not in parts:
            detail = " in shards" if is_sharded else f" of {runners}" if len(runners) > 1 else ""
            parts[key] = Part(Segment(name + detail), runners, is_sharded=is_sharded)
        return parts[key]

    def _add_sharding(self, weight: VariableInfo) -> Sharding:
        sharding = sharding_of(weight, self._config, self._optimizer.kind)
        if sharding.has_weight:
            self.sharded_variables.append(weight.name)
        if sharding.has_accumulator:
            self.sharded_accumulators.append(weight.name)
        return sharding

    def _add_reductions(self, gradients: Sequence[Gradient]) -> None:
        """Plans a ring all-reduce over the replicas, in which each does its part.

        Nothing is left to do for an accumulator that is cut, or that each replica has for itself.
        """
        for ipu, parts in enumerate(self.parts):
            names = tuple(
                g.name
                for g in gradients
                if g.ipu == ipu
                and g.name not in self.sharded_accumulators
                and len(g.weight.leaders) < len(self._everyone)
            )
            if names:
                parts.append(Part(Segment(f"reduce {ipu}"), self._everyone, names))

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

    def _update(
        self, part: Part, gradient: Gradient, sharding: Sharding, clip: Register | None
    ) -> None:
        self._add_states(gradient, sharding)
        binding = _Binding(gradient, clip)
        results = part.code.inline(self._template(gradient), binding)
        for result, register in results.items():
            part.stores[register] = binding.variable(result)

    def _template(self, gradient: Gradient) -> Graph:
        # Rounding at random, each weight has numbers of its own.
        number = gradient.number if self._config.rounds_stochastically else 0
        key = (gradient.group, gradient.weight.dtype, number)
        if key not in self._templates:
            rule = record_update(self._optimizer, key[0], key[1], self._scale)
            if self._config.rounds_stochastically:
                rule = stochastic_rounding.run(rule, stochastic_rounding.first_update_id(number))
            self._templates[key] = rule
        return self._templates[key]

    def _add_states(self, gradient: Gradient, sharding: Sharding) -> None:
        """Plans the weight's states, with as many copies as the weight has.

        Each replica that updates a part counts the steps for itself.
        """
        weight = gradient.weight
        for spec in state_names(self._optimizer, self._optimizer.groups[gradient.group]):
            state = VariableInfo(
                index=-1,
                name=state_variable(spec.name, gradient.name),
                shape=() if spec.is_scalar else weight.shape,
                dtype=spec.dtype,
                is_per_replica=sharding.is_active and spec.is_scalar,
                initial=spec.initial,
                group_of_replica=weight.group_of_replica,
            )
            self.states.append(state)
            if sharding.has_states and not spec.is_scalar:
                self.sharded_variables.append(state.name)


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
