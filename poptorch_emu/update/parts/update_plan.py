"""What each IPU runs at the end of a window, as values: segments, their links and new states.

Nothing here knows the engine; `engine/lower.py` hands it over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from poptorch_emu.config import CompileConfig
from poptorch_emu.enums import ReductionType
from poptorch_emu.ir.graph import Graph
from poptorch_emu.passes import stochastic_rounding
from poptorch_emu.segments.segment import Register, Segment
from poptorch_emu.segments.sharding import Sharding, sharding_of
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.update.formulas.config import OptimizerConfig
from poptorch_emu.update.formulas.rules import is_elementwise, state_names
from poptorch_emu.update.parts.lamb_shards import LambShards
from poptorch_emu.update.parts.loss_scale_parts import STATISTICS_VARIABLE, LossScaleParts
from poptorch_emu.update.parts.network_parts import NetworkParts
from poptorch_emu.update.parts.row_updates import updates_rows
from poptorch_emu.update.parts.update_parts import (
    Binding,
    Gradient,
    Part,
    PartLink,
    state_variable,
)
from poptorch_emu.update.recorded.clip_rule import record_clip, record_norm
from poptorch_emu.update.recorded.update_rule import CLIP, record_update


class _PartKey(NamedTuple):
    """What the weights of one part of an update have in common."""

    runners: tuple[int, ...]
    is_sharded: bool = False
    is_by_rows: bool = False

    @property
    def detail(self) -> str:
        """What the name of the part says of it."""
        if self.is_sharded:
            return " in shards"
        if self.is_by_rows:
            return " by rows"
        return f" of {self.runners}" if len(self.runners) > 1 else ""


class UpdatePlan:
    """The parts of an update in the order in which each IPU runs them.

    Attributes:
        states: what the optimiser keeps on the device; numbered by who adds them to the program.
        sharded_accumulators: weights whose accumulator each replica holds a part of.
        sums: names of further accumulators, float32, which replicas add up during the update.
    """

    def __init__(self, optimizer: OptimizerConfig, config: CompileConfig, num_ipus: int) -> None:
        self.parts: list[list[Part]] = [[] for _ in range(num_ipus)]
        self.links: list[PartLink] = []
        self.states: list[VariableInfo] = []
        self.sharded_accumulators: list[str] = []
        self.sums: list[str] = []
        self._optimizer = optimizer
        self._config = config
        self._scale = gradient_scale(config)
        self._everyone = tuple(range(config.replication_factor))
        self._templates: dict[tuple[int, torch.dtype, int], Graph] = {}
        self._norms: list[tuple[str, int]] = []
        self._network = NetworkParts(self._everyone) if config.num_processes > 1 else None
        self._loss_scale = (
            LossScaleParts(
                optimizer.loss_scale_rule,
                optimizer.accum_type,
                mean_scale(config),
                config.replication_factor if config.weight_groups else 1,
            )
            if optimizer.loss_scale_rule is not None
            else None
        )

    @property
    def network(self) -> list[Part]:
        """What several processes exchange, one list in a fixed order."""
        return self._network.parts if self._network is not None else []

    @property
    def accumulator_type(self) -> torch.dtype:
        """What gradients are accumulated in."""
        return self._optimizer.accum_type

    def add(self, gradients: Sequence[Gradient], loss_ipu: int = 0) -> None:
        """Plans the update of all weights, each on the IPU where its gradient ends.

        Args:
            gradients: of the weights.
            loss_ipu: where back-propagation starts.
        """
        shardings = {g.name: self._add_sharding(g.weight) for g in gradients}
        self._add_reductions(gradients, shardings)
        self._norms = self._add_norms(gradients) if self._optimizer.clips else []
        if self._loss_scale is not None and gradients:
            self._add_loss_scale(self._loss_scale, gradients, loss_ipu)
        for ipu, parts in enumerate(self.parts):
            updates: dict[_PartKey, Part] = {}
            self._part(updates, f"update {ipu}", _PartKey((0,)))
            arrivals: dict[str, dict[str, Register]] = {}
            mine = [gradient for gradient in gradients if gradient.ipu == ipu]
            for gradient in mine:
                self._add_states(gradient, shardings[gradient.name])
            if not is_elementwise(self._optimizer.kind):
                mine = self._add_lamb(ipu, mine, shardings)
            for gradient in mine:
                sharding = shardings[gradient.name]
                runners = self._everyone if sharding.is_active else gradient.weight.leaders
                is_by_rows = updates_rows(gradient, self._optimizer, self._config)
                key = _PartKey(runners, sharding.is_active, is_by_rows)
                part = self._part(updates, f"update {ipu}", key)
                if part.code.name not in arrivals:
                    arrivals[part.code.name] = self._add_arrivals(part.code)
                arrived = arrivals[part.code.name]
                Binding(gradient, arrived).inline(self._template(gradient), part)
            for part in updates.values():
                part.code.set_dying(set(part.stores))
            parts.extend(updates.values())
            if self._network is not None:
                parts.extend(self._network.add_gather(ipu, self._cut_variables(parts)))
        if self._network is not None:
            self.links.extend(self._network.links)

    def _part(self, parts: dict[_PartKey, Part], name: str, key: _PartKey) -> Part:
        """Returns the part for these runners, a new one if there is none."""
        if key not in parts:
            parts[key] = Part(
                Segment(name + key.detail),
                key.runners,
                is_sharded=key.is_sharded,
                is_by_rows=key.is_by_rows,
            )
        return parts[key]

    def _add_sharding(self, weight: VariableInfo) -> Sharding:
        sharding = sharding_of(weight, self._config)
        if sharding.has_accumulator:
            self.sharded_accumulators.append(weight.name)
        return sharding

    def _add_reductions(
        self, gradients: Sequence[Gradient], shardings: Mapping[str, Sharding]
    ) -> None:
        """Plans a ring all-reduce over the replicas, in which each does its part.

        Nothing is left to do for an accumulator that is cut, or that each replica has for itself.
        With several processes the network does it, and the replicas wait for that.
        """
        for ipu, parts in enumerate(self.parts):
            mine = [gradient for gradient in gradients if gradient.ipu == ipu]
            if self._network is not None:
                parts.extend(self._add_exchange(self._network, ipu, mine, shardings))
                continue
            names = tuple(
                g.name
                for g in mine
                if g.name not in self.sharded_accumulators
                and len(g.weight.leaders) < len(self._everyone)
            )
            if names:
                parts.append(Part(Segment(f"reduce {ipu}"), self._everyone, names))

    def _add_exchange(
        self,
        network: NetworkParts,
        ipu: int,
        gradients: Sequence[Gradient],
        shardings: Mapping[str, Sharding],
    ) -> list[Part]:
        """Plans that the network adds up gradients; returns what waits for that on an IPU.

        Norms and counts are of whole gradients; else a process needs its parts of what is cut.
        """
        needs_whole = self._optimizer.clips or self._loss_scale is not None
        sharded = [g.name for g in gradients if g.name in self.sharded_accumulators]
        others = [g.name for g in gradients if g.name not in self.sharded_accumulators]
        cut = [name for name in others if shardings[name].is_active and not needs_whole]
        whole = [name for name in others if name not in cut]
        return network.add_gradients(ipu, whole, cut, sharded if needs_whole else ())

    def _cut_variables(self, parts: Sequence[Part]) -> list[str]:
        """Returns the weights and states of which each replica assigns its part."""
        scalars = {state.name for state in self.states if not state.shape}
        stored = [name for part in parts if part.is_sharded for name in part.stores.values()]
        return [name for name in stored if name not in scalars]

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

    def _add_loss_scale(
        self, loss_scale: LossScaleParts, gradients: Sequence[Gradient], loss_ipu: int
    ) -> None:
        """Plans that gradients are counted where they are, and that the scale follows."""
        self.states.append(STATISTICS_VARIABLE)
        for ipu, parts in enumerate(self.parts):
            mine = [gradient for gradient in gradients if gradient.ipu == ipu]
            if mine:
                parts.extend(loss_scale.count(ipu, mine))
        self.parts[loss_ipu].append(loss_scale.change())
        self.sums.extend(loss_scale.sums)
        self.links = loss_scale.links

    def _add_arrivals(self, code: Segment) -> dict[str, Register]:
        """Plans what a segment is sent before it updates; returns the registers by name."""
        arrived = self._loss_scale.send(code) if self._loss_scale is not None else {}
        if self._norms:
            arrived[CLIP.name] = self._add_clip(code, arrived)
        return arrived

    def _add_clip(self, code: Segment, given: Mapping[str, Register]) -> Register:
        """Plans that the norms of all IPUs arrive and become one factor, in order of the IPUs.

        Each IPU computes the factor for itself, from the same numbers and so with the same bits.
        """
        arrived = dict(given)
        for number, (producer, source) in enumerate(self._norms):
            target = arrived[str(number)] = Register(code.new_register())
            self.links.append(PartLink(producer, (source,), code.name, (target.index,)))
        template = record_clip(
            len(self._norms), self._optimizer.max_grad_norm, is_scaled=self._loss_scale is not None
        )
        (register,) = code.inline(template, lambda source: arrived[source.name]).values()
        return Register(register)

    def _add_lamb(
        self, ipu: int, gradients: Sequence[Gradient], shardings: Mapping[str, Sharding]
    ) -> list[Gradient]:
        """Plans LAMB of the weights that are cut; returns the gradients of the others."""
        cut = [gradient for gradient in gradients if shardings[gradient.name].is_active]
        if cut:
            lamb = LambShards(self._optimizer, self._scale, self._everyone, ipu)
            arrived = self._loss_scale.send(lamb.directions.code) if self._loss_scale else {}
            lamb.add(cut, arrived)
            self.parts[ipu].extend(lamb.parts(self._network))
            self.links.append(lamb.link)
            self.sums.extend(lamb.sums)
        return [gradient for gradient in gradients if gradient not in cut]

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
        has_copies = sharding.is_active and len(self._everyone) > 1
        for spec in state_names(self._optimizer, self._optimizer.groups[gradient.group]):
            state = VariableInfo(
                index=-1,
                name=state_variable(spec.name, gradient.name),
                shape=() if spec.is_scalar else weight.shape,
                dtype=spec.dtype,
                is_per_replica=has_copies and spec.is_scalar,
                initial=spec.initial,
                group_of_replica=weight.group_of_replica,
                is_sharded=sharding.has_states and not spec.is_scalar,
            )
            self.states.append(state)


def gradient_scale(config: CompileConfig) -> float:
    """Returns the factor between the accumulated gradient and the one the optimiser is given.

    Source: PopTorch's reduction of gradients; the sum over replicas is made by the engine.
    """
    return 1.0 if config.reduction_type is ReductionType.Sum else mean_scale(config)


def mean_scale(config: CompileConfig) -> float:
    """Returns what turns the sum over all replicas into a mean over all micro-batches."""
    replicas = config.replication_factor * config.num_processes
    accumulated = 1 if config.is_running_mean else config.gradient_accumulation
    return 1.0 / (replicas * accumulated)
