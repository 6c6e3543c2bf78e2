"""The formulas of an update recorded as graphs. Each graph serves many weights.

A formula is a plain PyTorch function that must not look at shapes, so that its recording on a small
tensor is valid for every tensor. The sources and sinks of a graph have the names below. The user of
a graph binds them to a weight, a sum or another part of the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind
from poptorch_emu.ir.record import NodeRecord, Phase
from poptorch_emu.trace.fakes.fake_tensors import FakeMaker
from poptorch_emu.trace.pytorch.fake_mode import FakeMode
from poptorch_emu.trace.recording.recorder import IPU, Recorder
from poptorch_emu.update.formulas.clipping import clip_scale, global_norm
from poptorch_emu.update.formulas.loss_scale import (
    FACTOR,
    STATISTICS,
    LossScaleRule,
    count_large,
    next_factor,
)
from poptorch_emu.update.formulas.optimizer_config import LOSS_SCALING, Hyper, OptimizerConfig
from poptorch_emu.update.formulas.rules import lamb_direction, lamb_step, state_names, update

# Sizes that appear in no formula, so that a recorded size is not mistaken for a constant.
TEMPLATE_SHAPE = (3, 5)

# The weight, and its accumulated gradient.
WEIGHT = "weight"
# Values that parts of an update send to each other: a norm, the factor for all gradients, counts of
# large elements, the loss scale of this window, and LAMB's direction.
NORM, CLIP, COUNTS, LOSS_SCALE, DIRECTION = "norm", "clip", "counts", "loss scale", "direction"
# Sums over the replicas for LAMB: the squares of a weight and of its direction.
SQUARES = "squares"
NUM_SQUARES = 2


class Template:
    """A builder for the graph of an update."""

    def __init__(self) -> None:
        self._graph = Graph()
        self._record = NodeRecord(phase=Phase.UPDATE)
        self._recorder = Recorder(self._graph, lambda _: self._record)
        self._fake_mode = FakeMode()

    def source(
        self, kind: SourceKind, name: str, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> Tensor:
        """Adds a source and returns its fake tensor."""
        value = FakeMaker(IPU).empty(self._fake_mode, shape, dtype)
        self._recorder.add_source(Source(kind, name), value, self._record)
        return value

    def variable(
        self, name: str, dtype: torch.dtype, shape: tuple[int, ...] = TEMPLATE_SHAPE
    ) -> Tensor:
        """Adds a source for a weight, a state or another variable; returns its fake tensor."""
        return self.source(SourceKind.VARIABLE, name, dtype, shape)

    def gradient(self, name: str, dtype: torch.dtype) -> Tensor:
        """Adds a source for the accumulated gradient of a weight; returns its fake tensor."""
        return self.source(SourceKind.GRADIENT, name, dtype, TEMPLATE_SHAPE)

    def link(self, name: str, shape: tuple[int, ...] = ()) -> Tensor:
        """Adds a source for a float32 value of another part; returns its fake tensor."""
        return self.source(SourceKind.LINK, name, torch.float32, shape)

    def scalar(self, name: str) -> Tensor:
        """Adds a source for a hyper-parameter that may change; returns its fake tensor."""
        return self.source(SourceKind.SCALAR, name, torch.float64, ())

    def hyper(self, name: str, hyper: Hyper) -> float | Tensor:
        """Returns the value of a constant hyper-parameter, otherwise the tensor of a source."""
        return hyper.value if hyper.is_constant else self.scalar(name)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records the operations that run inside the context."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(self._fake_mode)
            stack.enter_context(self._recorder)
            yield

    def finish(
        self,
        variables: Mapping[str, Tensor] | None = None,
        links: Mapping[str, Tensor] | None = None,
        sums: Mapping[str, Tensor] | None = None,
    ) -> Graph:
        """Returns the graph, each of whose results comes from an operation.

        Args:
            variables: new values of variables, by name.
            links: values for other parts, by name.
            sums: values that are added to accumulators, by name.
        """
        kinds = {SinkKind.VARIABLE: variables, SinkKind.LINK: links, SinkKind.GRADIENT: sums}
        pairs = []
        for kind, results in kinds.items():
            for name, value in (results or {}).items():
                node = self._recorder.find(value)
                assert node is not None, f"{kind} {name} was made without an operation"
                pairs.append((Sink(kind, name), node))
        self._graph.set_results(pairs)
        return self._graph


def record_update(
    config: OptimizerConfig, group_index: int, weight_dtype: torch.dtype, gradient_scale: float
) -> Graph:
    """Returns the graph of one update of one weight.

    Its sources are `WEIGHT`, its gradient and states, and the hyper-parameters that may change. If
    the norm of all gradients has a limit, `CLIP` is a source, too; if the loss scale is automatic,
    `LOSS_SCALE` is. The results are the new weight and states.

    Args:
        config: optimiser.
        group_index: index of the weight's group.
        weight_dtype: type of the weight.
        gradient_scale: factor for the accumulated gradient, applied first.
    """
    template = Template()
    arguments = _rule_arguments(template, config, group_index, weight_dtype, gradient_scale)
    with template.recording():
        new_weight, new_state = update(*arguments)
    return template.finish({WEIGHT: new_weight, **new_state})


def record_average(weight_dtype: torch.dtype, average_dtype: torch.dtype) -> Graph:
    """Returns the graph of a moving average.

    Its sources are the variables "weight" and "average" and the input "factor", a single number.
    Its result is the new average.
    """
    template = Template()
    weight = template.variable("weight", weight_dtype)
    average = template.variable("average", average_dtype)
    given = template.source(SourceKind.INPUT, "factor", torch.float32, (1,))
    with template.recording():
        # The engine may have joined several micro-batches. Their factors are equal.
        factor = given.reshape(-1)[0]
        new = factor * average.float() + (1 - factor) * weight.float()
        return template.finish({"average": new.to(average_dtype)})


def record_lamb_direction(
    config: OptimizerConfig, group_index: int, weight_dtype: torch.dtype, gradient_scale: float
) -> Graph:
    """Returns the graph of the first half of LAMB, for a part of a weight.

    Arguments and sources are those of `record_update`. The results are the new states, `DIRECTION`
    and `SQUARES`.
    """
    template = Template()
    arguments = _rule_arguments(template, config, group_index, weight_dtype, gradient_scale)
    with template.recording():
        direction, squares, new_state = lamb_direction(*arguments)
    return template.finish(new_state, {DIRECTION: direction}, {SQUARES: squares})


def record_lamb_step(config: OptimizerConfig, group_index: int, weight_dtype: torch.dtype) -> Graph:
    """Returns the graph of the second half of LAMB, whose result is the weight.

    Its sources are `WEIGHT`, `DIRECTION`, the sums of `SQUARES`, and hyper-parameters.
    """
    template = Template()
    weight = template.variable(WEIGHT, weight_dtype)
    direction = template.link(DIRECTION, TEMPLATE_SHAPE)
    squares = template.source(SourceKind.GRADIENT, SQUARES, torch.float32, (NUM_SQUARES,))
    hypers = _hypers(template, config, group_index)
    with template.recording():
        new_weight = lamb_step(weight, direction, squares, hypers)
    return template.finish({WEIGHT: new_weight})


def record_norm(names: Sequence[str], dtype: torch.dtype, gradient_scale: float) -> Graph:
    """Returns the graph of the `NORM` of one IPU's gradients, 0-d float32.

    Args:
        names: weights whose accumulated gradients are the sources.
        dtype: type of the accumulated gradients.
        gradient_scale: factor for the gradients, applied first.
    """
    template = Template()
    gradients = [template.gradient(name, dtype) for name in names]
    with template.recording():
        norm = global_norm(gradients) * gradient_scale
    return template.finish(links={NORM: norm})


def record_clip(config: OptimizerConfig, num_norms: int) -> Graph:
    """Returns the graph of `CLIP`, the factor for all gradients, 0-d float32.

    Sources beside the norms are those of the loss scale, as in `record_update`.

    Args:
        config: optimiser with a limit of the norm.
        num_norms: number of partial norms. Each is a source of kind LINK, numbered from 0.
    """
    template = Template()
    norms = [template.link(str(index)) for index in range(num_norms)]
    constant = template.hyper(LOSS_SCALING, config.loss_scaling) if config.kind.is_sgd else 1.0
    scaling = _loss_scale(template, config)
    with template.recording():
        freed = [_rescaled(norm, scaling, 1.0) for norm in norms]
        scale = clip_scale(freed, config.limit_of_norm(constant)).float()
    return template.finish(links={CLIP: scale})


def record_counts(names: Sequence[str], dtype: torch.dtype, edge: float) -> Graph:
    """Returns the graph of the `COUNTS` of one IPU's gradients, float32, of shape (2,).

    Args:
        names: weights whose accumulated gradients are the sources.
        dtype: type of the accumulated gradients.
        edge: least magnitude of a large element.
    """
    template = Template()
    gradients = [template.gradient(name, dtype) for name in names]
    with template.recording():
        counts = count_large(gradients, edge)
    return template.finish(links={COUNTS: counts})


def record_loss_scale(rule: LossScaleRule, num_counts: int, num_elements: int) -> Graph:
    """Returns the graph that adapts an automatic loss scale to the counts of all IPUs.

    Its sources are the counts, of kind LINK and numbered from 0, the loss scaling, `FACTOR` and
    `STATISTICS`. Its results are new values of the last two, and `LOSS_SCALE`.

    Args:
        rule: rule for changes of the scale.
        num_counts: number of IPUs that count.
        num_elements: number of elements on all of these IPUs.
    """
    template = Template()
    counts = [template.link(str(index), (2,)) for index in range(num_counts)]
    factor = template.variable(FACTOR, torch.float32, ())
    statistics = template.variable(STATISTICS, torch.float32, (2,))
    scaling = template.scalar(LOSS_SCALING)
    with template.recording():
        shares = torch.stack(counts).sum(0) / num_elements
        new_factor, new_statistics = next_factor(rule, factor, statistics, shares, scaling)
        scale = (scaling * factor).float()
    return template.finish({FACTOR: new_factor, STATISTICS: new_statistics}, {LOSS_SCALE: scale})


def _hypers(
    template: Template, config: OptimizerConfig, group_index: int
) -> dict[str, float | Tensor]:
    hypers = config.groups[group_index].hypers
    return {name: template.hyper(name, hyper) for name, hyper in hypers}


def _rule_arguments(
    template: Template,
    config: OptimizerConfig,
    group_index: int,
    weight_dtype: torch.dtype,
    gradient_scale: float,
) -> tuple[OptimizerConfig, int, Tensor, Tensor, dict[str, Tensor], dict[str, float | Tensor]]:
    """Returns the arguments of a rule, with the gradient already scaled and clipped."""
    weight = template.variable(WEIGHT, weight_dtype)
    gradient = template.gradient(WEIGHT, config.accum_type)
    clip = template.link(CLIP) if config.clips else None
    states = {
        spec.name: template.variable(
            spec.name, spec.dtype, () if spec.is_scalar else TEMPLATE_SHAPE
        )
        for spec in state_names(config, config.groups[group_index])
    }
    hypers = _hypers(template, config, group_index)
    scaling = _loss_scale(template, config)
    with template.recording():
        gradient = _rescaled(gradient, scaling, gradient_scale)
        if clip is not None:
            gradient = gradient * clip
    return config, group_index, weight, gradient, states, hypers


def _loss_scale(template: Template, config: OptimizerConfig) -> float | Tensor:
    """Returns the factor of the gradients in this window."""
    if config.loss_scale_rule is not None:
        return template.link(LOSS_SCALE)
    return template.hyper(LOSS_SCALING, config.loss_scaling)


def _rescaled(gradient: Tensor, loss_scaling: float | Tensor, scale: float) -> Tensor:
    """Returns a gradient or a norm divided by the loss scaling and multiplied by `scale`."""
    if isinstance(loss_scaling, Tensor):
        return gradient.float() * (scale / loss_scaling).float()
    factor = scale / loss_scaling
    return gradient if factor == 1.0 else gradient.float() * factor
