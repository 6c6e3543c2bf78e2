"""Records how gradients are counted and the automatic loss scale follows, over several IPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind
from poptorch_emu.update.formulas.config import LOSS_SCALING
from poptorch_emu.update.formulas.loss_scale import (
    FACTOR,
    STATISTICS,
    TOTAL,
    LossScaleRule,
    count_large,
    next_factor,
)
from poptorch_emu.update.recorded.template import Template

# What travels between segments: counts, the scale of this window, and what frees a norm of the
# factor.
COUNTS = Sink(SinkKind.LINK, "counts")
SCALE = Sink(SinkKind.LINK, TOTAL)
UNSCALE = Sink(SinkKind.LINK, "unscale")


def record_counts(names: Sequence[str], dtype: torch.dtype, edge: float) -> Graph:
    """Returns the graph of the counts of one IPU's gradients; its sink is `COUNTS`.

    Args:
        names: the weights, whose accumulated gradients are the sources.
        dtype: type of the accumulated gradients.
        edge: from which magnitude on an element of them is large.
    """
    template = Template()
    gradients = [template.source(Source(SourceKind.GRADIENT, name), dtype) for name in names]
    with template.recording():
        counts = count_large(gradients, edge)
    return template.finish({COUNTS: counts})


def record_loss_scale(rule: LossScaleRule, num_counts: int, num_elements: int) -> Graph:
    """Returns the graph that uses the counts of all IPUs.

    Its sources are LINK (the counts, numbered from 0), VARIABLE and SCALAR; its sinks are the
    variables, `SCALE` and `UNSCALE`.

    Args:
        rule: when the scale changes.
        num_counts: how many IPUs counted.
        num_elements: how many elements they counted together.
    """
    template = Template()
    counts = [
        template.source(Source(SourceKind.LINK, str(index)), torch.float32, (2,))
        for index in range(num_counts)
    ]
    factor = template.source(Source(SourceKind.VARIABLE, FACTOR), torch.float32, ())
    statistics = template.source(Source(SourceKind.VARIABLE, STATISTICS), torch.float32, (2,))
    scaling = template.source(Source(SourceKind.SCALAR, LOSS_SCALING), torch.float64, ())
    with template.recording():
        shares = torch.stack(counts).sum(0) / num_elements
        new_factor, new_statistics = next_factor(rule, factor, statistics, shares, scaling)
        results = {
            Sink(SinkKind.VARIABLE, FACTOR): new_factor,
            Sink(SinkKind.VARIABLE, STATISTICS): new_statistics,
            SCALE: (scaling * factor).float(),
            UNSCALE: factor.reciprocal(),
        }
    return template.finish(results)
