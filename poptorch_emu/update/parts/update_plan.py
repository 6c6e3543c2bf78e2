"""The plan of an update: the segments of each IPU at the end of a window, their links, new states.

The plan does not depend on the engine; `engine/lower.py` lowers it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from poptorch_emu.config import CompileConfig
from poptorch_emu.enums import ReductionType
from poptorch_emu.ir.graph import Average, Graph, SinkKind, Source, SourceKind
from poptorch_emu.passes import stochastic_rounding
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.segments.placement import location_of
from poptorch_emu.segments.segment import Register, Segment
from poptorch_emu.segments.segmented_graph import SegmentedGraph, is_left_to_sum
from poptorch_emu.segments.sharding import Sharding, sharding_of
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.update.formulas.loss_scale import FACTOR
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig
from poptorch_emu.update.formulas.rules import ignores_zero_gradients, is_elementwise, state_names
from poptorch_emu.update.parts.average_parts import average_parts
from poptorch_emu.update.parts.clip_parts import ClipParts
from poptorch_emu.update.parts.lamb_parts import add_lamb
from poptorch_emu.update.parts.loss_scale_parts import STATISTICS_VARIABLE, LossScaleParts
from poptorch_emu.update.parts.network_parts import NetworkParts
from poptorch_emu.update.parts.update_parts import (
    Binding,
    Gradient,
    Part,
    PartLink,
    state_variable,
)
from poptorch_emu.update.recorded import record_update

# Rules are cached, because programs share them, and each program needs them for the machine's plan
# and for the engine.
_known_rule = lru_cache(maxsize=64)(record_update)


class _PartKey(NamedTuple):
    """The properties that all weights of one part of an update share."""

    runners: tuple[int, ...]
    is_sharded: bool = False
    is_by_rows: bool = False

    @property
    def detail(self) -> str:
        """Suffix of the part's name."""
        if self.is_sharded:
            return " in shards"
        if self.is_by_rows:
            return " by rows"
        return f" of {self.runners}" if len(self.runners) > 1 else ""


class UpdatePlan:
    """The parts of an update, in the order of execution on each IPU.

    Attributes:
        states: states that the optimiser keeps on the device; the lowering numbers them.
        sharded_accumulators: weights whose accumulator is sharded over the replicas.
        sums: names of further float32 accumulators, which replicas add up during the update.
        averages: moving averages that each IPU computes first.
    """

    def __init__(self, optimizer: OptimizerConfig, config: CompileConfig, num_ipus: int) -> None:
        self.parts: list[list[Part]] = [[] for _ in range(num_ipus)]
        self.states: list[VariableInfo] = []
        self.sharded_accumulators: list[str] = []
        self.sums: list[str] = []
        self.averages: list[list[Average]] = [[] for _ in range(num_ipus)]
        self._optimizer = optimizer
        self._config = config
        self._scale = gradient_scale(config)
        self._everyone = tuple(range(config.replication_factor))
        self._shardings: dict[str, Sharding] = {}
        self._clip = ClipParts(optimizer, self._scale) if optimizer.clips else None
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
        """Exchanges between processes, in their fixed order."""
        return self._network.parts if self._network is not None else []

    @property
    def links(self) -> list[PartLink]:
        """All links between parts."""
        everything = [part for parts in (*self.parts, self.network) for part in parts]
        return [link for part in everything for link in part.links]

    @property
    def has_moments(self) -> bool:
        """Whether the rule keeps moments of the gradients, as all rules but SGD do."""
        return not self._optimizer.kind.is_sgd

    @property
    def accumulator_type(self) -> torch.dtype:
        """Type of the accumulated gradients."""
        return self._optimizer.accum_type

    def add_averages(
        self,
        averages: Sequence[Average],
        gradients: Sequence[Gradient],
        variables: Mapping[str, VariableInfo],
    ) -> None:
        """Plans the moving averages, each on the IPU where its weight changes afterwards."""
        ipu_of = {gradient.name: gradient.ipu for gradient in gradients}
        for each in averages:
            self.averages[ipu_of.get(each.weight, 0)].append(each)
        for ipu, mine in enumerate(self.averages):
            self.parts[ipu] += average_parts(ipu, mine, variables)

    def add(self, gradients: Sequence[Gradient], loss_ipu: int = 0) -> None:
        """Plans the update of all weights, each on the IPU where its gradient ends.

        Args:
            gradients: gradients of the weights.
            loss_ipu: index of the IPU where back-propagation starts.
        """
        self._shardings = {g.name: sharding_of(g.weight, self._config) for g in gradients}
        self.sharded_accumulators += [
            name for name, sharding in self._shardings.items() if sharding.has_accumulator
        ]
        by_ipu = [[g for g in gradients if g.ipu == ipu] for ipu in range(len(self.parts))]
        for ipu, mine in enumerate(by_ipu):
            self.parts[ipu] += self._reductions(ipu, mine)
            if self._clip is not None:
                self.parts[ipu] += self._clip.norms(mine)
            if self._loss_scale is not None and mine:
                self.parts[ipu] += self._loss_scale.count(ipu, mine)
        if self._loss_scale is not None and gradients:
            self.states.append(STATISTICS_VARIABLE)
            self.parts[loss_ipu].append(self._loss_scale.change())
            self.sums += self._loss_scale.sums
        for ipu, mine in enumerate(by_ipu):
            for gradient in mine:
                self._add_states(gradient)
            self.parts[ipu] += self._updates(ipu, mine)
            if self._network is not None:
                cut = self._cut_variables(self.parts[ipu])
                self.parts[ipu] += self._network.add_gather(ipu, cut)
        for parts in self.parts:
            for part in parts:
                part.finish()

    def _reductions(self, ipu: int, gradients: Sequence[Gradient]) -> list[Part]:
        """Returns the parts of a ring all-reduce over the replicas.

        An accumulator that is sharded, or that each replica has for itself, needs no reduction.
        With several processes the network reduces, and the replicas wait for it.
        """
        if self._network is not None:
            return self._exchange(self._network, ipu, gradients)
        names = tuple(
            g.name
            for g in gradients
            if g.name not in self.sharded_accumulators
            and len(g.weight.leaders) < len(self._everyone)
        )
        return [Part(Segment(f"reduce {ipu}"), self._everyone, names)] if names else []

    def _exchange(
        self, network: NetworkParts, ipu: int, gradients: Sequence[Gradient]
    ) -> list[Part]:
        """Plans the network's sums of gradients; returns the parts on an IPU that wait for them.

        Norms and counts need whole gradients. Otherwise a process only needs its shards of sharded
        gradients.
        """
        needs_whole = self._clip is not None or self._loss_scale is not None
        sharded = [g.name for g in gradients if g.name in self.sharded_accumulators]
        others = [g.name for g in gradients if g.name not in self.sharded_accumulators]
        cut = [name for name in others if self._shardings[name].is_active and not needs_whole]
        whole = [name for name in others if name not in cut]
        return network.add_gradients(ipu, whole, cut, sharded if needs_whole else ())

    def _cut_variables(self, parts: Sequence[Part]) -> list[str]:
        """Returns the weights and states whose shards the replicas assign."""
        scalars = {state.name for state in self.states if not state.shape}
        stored = [name for part in parts if part.is_sharded for name in part.stores.values()]
        return [name for name in stored if name not in scalars]

    def _arrivals(self, part: Part) -> dict[str, Register]:
        """Plans the links that a part waits for before it updates; returns registers by name."""
        arrived = self._loss_scale.send(part) if self._loss_scale is not None else {}
        if self._clip is not None:
            arrived |= self._clip.add_factor(part, arrived)
        return arrived

    def _updates(self, ipu: int, gradients: Sequence[Gradient]) -> list[Part]:
        """Returns the parts that update the weights of an IPU, one for each key."""
        parts: list[Part] = []
        by_key: dict[_PartKey, list[Gradient]] = {_PartKey((0,)): []}
        cut_for_lamb = []
        for gradient in gradients:
            sharding = self._shardings[gradient.name]
            if sharding.is_active and not is_elementwise(self._optimizer.kind):
                cut_for_lamb.append(gradient)
                continue
            runners = self._everyone if sharding.is_active else gradient.weight.leaders
            key = _PartKey(runners, sharding.is_active, self._is_by_rows(gradient))
            by_key.setdefault(key, []).append(gradient)
        if cut_for_lamb:
            parts += self._lamb(ipu, cut_for_lamb)
        for key, members in by_key.items():
            part = Part(
                Segment(f"update {ipu}{key.detail}"),
                key.runners,
                is_sharded=key.is_sharded,
                is_by_rows=key.is_by_rows,
            )
            arrived = self._arrivals(part) if members else {}
            for gradient in members:
                Binding(gradient, arrived).inline(self._template(gradient), part)
            parts.append(part)
        return parts

    def _lamb(self, ipu: int, gradients: Sequence[Gradient]) -> list[Part]:
        """Returns the parts that update sharded weights by LAMB."""
        directions, steps = (
            Part(Segment(f"{name} {ipu}"), self._everyone, is_sharded=True)
            for name in ("directions", "steps")
        )
        arrived = self._arrivals(directions)
        sums = add_lamb(self._optimizer, self._scale, gradients, arrived, directions, steps)
        self.sums += sums
        if self._network is not None:
            return [directions, *self._network.add_squares(ipu, sums), steps]
        reduction = Part(Segment(f"reduce squares {ipu}"), self._everyone, tuple(sums))
        return [directions, reduction, steps]

    def _is_by_rows(self, gradient: Gradient) -> bool:
        """Returns whether the update of a weight skips the rows without gradient.

        All rows are needed if replicas add up their sums, if the weight or its sum is in streaming
        memory, or if the user anchors the whole gradient.
        """
        config, num_elements = self._config, gradient.weight.num_elements
        return (
            gradient.is_by_rows
            and ignores_zero_gradients(self._optimizer, gradient.group)
            and config.replication_factor * config.num_processes == 1
            and not location_of(config, False).is_remote(num_elements)
            and not config.locations.accumulator.is_remote(num_elements)
            and not any(a.long_name.endswith(f"___{gradient.name}") for a in config.anchors)
        )

    def _template(self, gradient: Gradient) -> Graph:
        arguments = self._optimizer, gradient.group, gradient.weight.dtype, self._scale
        if not self._config.rounds_stochastically:
            return _known_rule(*arguments)
        # With stochastic rounding each weight has its own random numbers.
        first_id = stochastic_rounding.first_update_id(gradient.number)
        return stochastic_rounding.run(record_update(*arguments), first_id)

    def _add_states(self, gradient: Gradient) -> None:
        """Plans the states of a weight, with as many copies as the weight has.

        Each replica that updates a shard keeps its own count of steps.
        """
        weight, sharding = gradient.weight, self._shardings[gradient.name]
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


def plan_update(
    cut: SegmentedGraph,
    placed: Partition,
    variables: Mapping[str, VariableInfo],
    config: CompileConfig,
    optimizer: OptimizerConfig,
    parameters: tuple[str, ...],
    averages: tuple[Average, ...] = (),
) -> UpdatePlan:
    """Returns the plan of the update at the end of a window.

    Args:
        cut: segments, which compute the gradients.
        placed: assignment of the segments to IPUs.
        variables: variables of the model, by name.
        config: configuration of reduction and sharding.
        optimizer: optimiser with its rule.
        parameters: trainable parameters, in the optimiser's order.
        averages: moving averages of weights, which are computed before the weights change.
    """
    gradients = [
        Gradient(
            sink.name,
            placed.ipu_of_stage[port[1]],
            optimizer.group_of_parameter[parameters.index(sink.name)],
            variables[sink.name],
            parameters.index(sink.name),
            is_left_to_sum(node),
            port[1],
        )
        for sink, port, node in cut.results
        if sink.kind is SinkKind.GRADIENT
    ]
    plan = UpdatePlan(optimizer, config, len(placed.ipu_ids))
    plan.add_averages(averages, gradients, variables)
    plan.add(gradients, _loss_ipu(cut, placed))
    return plan


def _loss_ipu(cut: SegmentedGraph, placed: Partition) -> int:
    """Returns the IPU that reads the factor of an automatic loss scale, if there is one."""
    source = Source(SourceKind.VARIABLE, FACTOR)
    stages = {port[1] for port, code in cut.segments.items() if source in code.loads}
    assert len(stages) <= 1, "back-propagation starts in one place"
    return placed.ipu_of_stage[stages.pop()] if stages else 0


def gradient_scale(config: CompileConfig) -> float:
    """Returns the factor from the accumulated gradient to the optimiser's gradient.

    Source: PopTorch's reduction of gradients. The engine computes the sum over replicas.
    """
    return 1.0 if config.reduction_type is ReductionType.Sum else mean_scale(config)


def mean_scale(config: CompileConfig) -> float:
    """Returns the factor from the sum over all replicas to the mean over all micro-batches."""
    replicas = config.replication_factor * config.num_processes
    accumulated = 1 if config.is_running_mean else config.gradient_accumulation
    return 1.0 / (replicas * accumulated)
