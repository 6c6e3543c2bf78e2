"""Records an optimiser's rule once, as a graph that serves every parameter of a group.

The rule is a plain-PyTorch function of one weight, its gradient and its state; it must not look at
shapes, so that what is recorded on a small tensor runs on any other.
"""

from __future__ import annotations

import torch

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind
from poptorch_emu.update.formulas.config import LOSS_SCALING, Hyper, OptimizerConfig
from poptorch_emu.update.formulas.rules import state_names, update
from poptorch_emu.update.recorded.template import TEMPLATE_SHAPE, Template

WEIGHT = "weight"
CLIP = Source(SourceKind.LINK, "clip")
LOSS_SCALE = Source(SourceKind.LINK, "loss scale")


def record_update(
    config: OptimizerConfig, group_index: int, weight_dtype: torch.dtype, gradient_scale: float
) -> Graph:
    """Returns the graph of one update of one weight.

    Args:
        config: the optimiser.
        group_index: which of its groups.
        weight_dtype: type of the weight.
        gradient_scale: by what the accumulated gradient is multiplied first.

    Returns:
        A graph with sources VARIABLE (the weight and its state, by name), GRADIENT, SCALAR
        (hyper-parameters that the host may change), where the norm of all gradients has a limit
        `CLIP` (what they are all multiplied by), and where the loss scale is automatic
        `LOSS_SCALE`; and sinks VARIABLE.
    """
    template = Template()
    weight = template.source(Source(SourceKind.VARIABLE, WEIGHT), weight_dtype)
    gradient = template.source(Source(SourceKind.GRADIENT, WEIGHT), config.accum_type)
    clip = template.source(CLIP, torch.float32, ()) if config.clips else None
    states = state_sources(template, config, group_index)
    hypers = hyper_sources(template, config, group_index)
    scaling = loss_scaling_source(template, config)
    with template.recording():
        reduced = rescaled(gradient, scaling, gradient_scale)
        if clip is not None:
            reduced = reduced * clip
        new_weight, new_state = update(config, group_index, weight, reduced, states, hypers)
    return template.finish(
        {
            Sink(SinkKind.VARIABLE, name): value
            for name, value in {WEIGHT: new_weight, **new_state}.items()
        }
    )


def state_sources(
    template: Template, config: OptimizerConfig, group_index: int
) -> dict[str, torch.Tensor]:
    """Returns stand-ins for the states of a weight, by name."""
    return {
        spec.name: template.source(
            Source(SourceKind.VARIABLE, spec.name),
            spec.dtype,
            () if spec.is_scalar else TEMPLATE_SHAPE,
        )
        for spec in state_names(config, config.groups[group_index])
    }


def hyper_sources(
    template: Template, config: OptimizerConfig, group_index: int
) -> dict[str, float | torch.Tensor]:
    """Returns the hyper-parameters of a group: numbers, and stand-ins for those that may change."""
    return {
        name: _hyper_source(template, name, hyper)
        for name, hyper in config.groups[group_index].hypers
    }


def loss_scaling_source(template: Template, config: OptimizerConfig) -> float | torch.Tensor:
    """Returns the loss scaling like a hyper-parameter, or an automatic scale as it arrives."""
    if config.loss_scale_rule is not None:
        return template.source(LOSS_SCALE, torch.float32, ())
    return _hyper_source(template, LOSS_SCALING, config.loss_scaling)


def _hyper_source(template: Template, name: str, hyper: Hyper) -> float | torch.Tensor:
    if hyper.is_constant:
        return hyper.value
    return template.source(Source(SourceKind.SCALAR, name), torch.float64, ())


def rescaled(
    gradient: torch.Tensor, loss_scaling: float | torch.Tensor, scale: float
) -> torch.Tensor:
    """Frees a gradient of the loss scaling and multiplies it by `scale`."""
    if isinstance(loss_scaling, torch.Tensor):
        return gradient.float() * (scale / loss_scaling).float()
    factor = scale / loss_scaling
    return gradient if factor == 1.0 else gradient.float() * factor
