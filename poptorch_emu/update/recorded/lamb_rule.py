"""Records LAMB for parts of a weight: two halves, between which the parts add up their squares."""

from __future__ import annotations

import torch

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind
from poptorch_emu.update.formulas.config import OptimizerConfig
from poptorch_emu.update.formulas.rules import lamb_direction, lamb_step
from poptorch_emu.update.recorded.template import Template
from poptorch_emu.update.recorded.update_rule import (
    WEIGHT,
    hyper_sources,
    loss_scaling_source,
    rescaled,
    state_sources,
)

DIRECTION = Sink(SinkKind.LINK, "direction")
# The name of the sums of squares of weight and direction, among the gradients.
SQUARES = "squares"
# One sum for the weight and one for the direction.
NUM_SQUARES = 2


def record_lamb_direction(
    config: OptimizerConfig, group_index: int, weight_dtype: torch.dtype, gradient_scale: float
) -> Graph:
    """Returns the graph of the first half; arguments are those of `record_update`.

    Its sinks are VARIABLE (the states), `DIRECTION`, and GRADIENT (`SQUARES`).
    """
    template = Template()
    weight = template.source(Source(SourceKind.VARIABLE, WEIGHT), weight_dtype)
    gradient = template.source(Source(SourceKind.GRADIENT, WEIGHT), config.accum_type)
    states = state_sources(template, config, group_index)
    hypers = hyper_sources(template, config, group_index)
    scaling = loss_scaling_source(template, config)
    with template.recording():
        reduced = rescaled(gradient, scaling, gradient_scale)
        direction, squares, new_states = lamb_direction(
            config, group_index, weight, reduced, states, hypers
        )
    return template.finish(
        {
            **{Sink(SinkKind.VARIABLE, name): value for name, value in new_states.items()},
            DIRECTION: direction,
            Sink(SinkKind.GRADIENT, SQUARES): squares,
        }
    )


def record_lamb_step(config: OptimizerConfig, group_index: int, weight_dtype: torch.dtype) -> Graph:
    """Returns the graph of the second half, whose sink is the weight.

    Its sources are VARIABLE (the weight), LINK (the direction), GRADIENT (`SQUARES`) and SCALAR.
    """
    template = Template()
    weight = template.source(Source(SourceKind.VARIABLE, WEIGHT), weight_dtype)
    direction = template.source(Source(SourceKind.LINK, DIRECTION.name), torch.float32)
    squares = template.source(Source(SourceKind.GRADIENT, SQUARES), torch.float32, (NUM_SQUARES,))
    hypers = hyper_sources(template, config, group_index)
    with template.recording():
        new_weight = lamb_step(weight, direction, squares, hypers)
    return template.finish({Sink(SinkKind.VARIABLE, WEIGHT): new_weight})
