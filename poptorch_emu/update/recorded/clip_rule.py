"""Records how the global norm of all gradients is taken and limited, over several IPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind
from poptorch_emu.update.formulas.clipping import clip_scale, global_norm
from poptorch_emu.update.recorded.loss_scale_rule import UNSCALE
from poptorch_emu.update.recorded.template import Template

# What a norm or a scale is called on its way between segments.
NORM = Sink(SinkKind.LINK, "norm")
SCALE = Sink(SinkKind.LINK, "scale")


def record_norm(names: Sequence[str], dtype: torch.dtype, gradient_scale: float) -> Graph:
    """Returns the graph of the norm of one IPU's gradients, 0-d float32.

    Args:
        names: the weights, whose accumulated gradients are the sources.
        dtype: type of the accumulated gradients.
        gradient_scale: by what they are multiplied first.
    """
    template = Template()
    gradients = [template.source(Source(SourceKind.GRADIENT, name), dtype) for name in names]
    with template.recording():
        norm = global_norm(gradients) * gradient_scale
    return template.finish({NORM: norm})


def record_clip(num_norms: int, max_norm: float, *, is_scaled: bool = False) -> Graph:
    """Returns the graph of what to multiply all gradients by, 0-d float32.

    Args:
        num_norms: how many partial norms there are, each a source of kind LINK, numbered from 0.
        max_norm: the limit.
        is_scaled: whether an automatic loss scale is in the norms; `UNSCALE`, a source of kind
            LINK, frees them of it.
    """
    template = Template()
    norms = [
        template.source(Source(SourceKind.LINK, str(index)), torch.float32, ())
        for index in range(num_norms)
    ]
    unscale = Source(SourceKind.LINK, UNSCALE.name)
    factor = template.source(unscale, torch.float32, ()) if is_scaled else None
    with template.recording():
        if factor is not None:
            norms = [norm * factor for norm in norms]
        scale = clip_scale(norms, max_norm)
    return template.finish({SCALE: scale})
