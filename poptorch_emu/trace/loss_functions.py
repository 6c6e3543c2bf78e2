"""The built-in loss functions: which ones mark their result as a loss, and where they differ.

Each is called in place of PyTorch's while `forward` is traced. The whole of what it computes is the
loss, with class weights and smoothed labels too, which PopTorch refuses and trains in part.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from poptorch_emu.errors import compiler_error
from poptorch_emu.trace import loss

LossFunction = Callable[..., torch.Tensor]


def call_loss(func: LossFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Returns the loss that `func`, one of `LOSS_FUNCTIONS`, computes, after marking it.

    Raises:
        Error: the device has no such form of the loss.
    """
    special = _SPECIAL.get(func)
    if special is not None:
        return special(_bound(func, args, kwargs))
    return _marked(func(*args, **kwargs), func)


def _bound(
    func: LossFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound


def _marked(value: torch.Tensor, func: LossFunction) -> torch.Tensor:
    loss.mark(value, func.__name__)
    return value


def _nll_loss(call: inspect.BoundArguments) -> torch.Tensor:
    value = F.nll_loss(*call.args, **call.kwargs)
    return _marked(_zero_without_targets(value, call.arguments), F.nll_loss)


def _cross_entropy(call: inspect.BoundArguments) -> torch.Tensor:
    value = F.cross_entropy(*call.args, **call.kwargs)
    if call.arguments["target"].is_floating_point():
        # Probabilities are no case of nll_loss, where PopTorch has its mark.
        return value
    return _marked(_zero_without_targets(value, call.arguments), F.cross_entropy)


def _zero_without_targets(value: torch.Tensor, arguments: Mapping[str, Any]) -> torch.Tensor:
    """Returns the mean over no target at all as 0, where PyTorch has NaN."""
    if arguments["reduction"] != "mean":
        return value
    has_target = (arguments["target"] != arguments["ignore_index"]).any()
    return torch.where(has_target, value, 0.0)


def _ctc_loss(call: inspect.BoundArguments) -> torch.Tensor:
    arguments = call.arguments
    if arguments["reduction"] == "none":
        raise compiler_error(
            'CTCLoss with reduction="none" is currently not supported. Choose "mean" or "sum".'
        )
    if arguments["targets"].dim() != 2:
        raise compiler_error(
            "CTCLoss takes targets of two dimensions, padded to the same length, but was given "
            f"{list(arguments['targets'].shape)}. Stack the targets with "
            "torch.nn.utils.rnn.pad_sequence(..., batch_first=True)."
        )
    return _marked(F.ctc_loss(*call.args, **call.kwargs), F.ctc_loss)


_SPECIAL: dict[LossFunction, Callable[[inspect.BoundArguments], torch.Tensor]] = {
    F.nll_loss: _nll_loss,
    F.cross_entropy: _cross_entropy,
    F.ctc_loss: _ctc_loss,
}

# Source: PopTorch's supported losses; each of them counts as a loss when it is called in forward.
LOSS_FUNCTIONS: frozenset[LossFunction] = frozenset(
    {
        *_SPECIAL,
        F.l1_loss,
        F.mse_loss,
        F.smooth_l1_loss,
        F.soft_margin_loss,
        F.hinge_embedding_loss,
        F.margin_ranking_loss,
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
        F.kl_div,
        F.poisson_nll_loss,
        F.cosine_embedding_loss,
        F.triplet_margin_loss,
        F.multilabel_soft_margin_loss,
    }
)
