"""Running backward within a trace."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.torch_versions import engine_run_backward


def differentiate(
    value: torch.Tensor, first_gradient: torch.Tensor, leaves: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradient of `value` for each leaf, `None` where it does not depend on it.

    This is what `torch.autograd.grad` comes down to; that one would leave the recorder's mode.

    Args:
        value: what is differentiated.
        first_gradient: where back-propagation starts, of the shape of `value`.
        leaves: that require a gradient.
    """
    keeps_graph = records_graph = False
    gradients: tuple[torch.Tensor | None, ...] = engine_run_backward(
        (value,),
        (first_gradient,),
        keeps_graph,
        records_graph,
        tuple(leaves),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return gradients
