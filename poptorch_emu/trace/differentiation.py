"""Running backward within a trace."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.torch_versions import engine_run_backward
from poptorch_emu.troubleshooting import Topic


def differentiate(
    value: torch.Tensor, first_gradient: torch.Tensor, leaves: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradient of `value` for each leaf, `None` where it does not depend on it.

    This is what `torch.autograd.grad` comes down to; that one would leave the recorder's mode.

    Args:
        value: what is differentiated.
        first_gradient: where back-propagation starts, of the shape of `value`.
        leaves: that require a gradient.

    Raises:
        Error: `forward` has gone back through the graph already.
    """
    keeps_graph = records_graph = False
    try:
        gradients: tuple[torch.Tensor | None, ...] = engine_run_backward(
            (value,),
            (first_gradient,),
            keeps_graph,
            records_graph,
            tuple(leaves),
            allow_unreachable=True,
            accumulate_grad=False,
        )
    except RuntimeError as failure:
        if "backward through the graph a second time" not in str(failure):
            raise
        raise compiler_error(
            "forward has called backward() on the loss already, or on what the loss is made of. A "
            "model wrapped by poptorch.trainingModel runs backward itself: take the call out, or "
            f"write backward(retain_graph=True); {Topic.EXPLICIT_BACKWARD}"
        ) from failure
    return gradients
