"""The built-in loss functions, which mark their results as losses, and their static forms.

Each function is called in place of PyTorch's while `forward` is traced. The whole result is the
loss, also with class weights and smoothed labels, which PopTorch rejects and trains in part.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from poptorch_emu.errors import compiler_error
from poptorch_emu.torch_versions import native_functions
from poptorch_emu.trace.operators import loss

LossFunction = Callable[..., torch.Tensor]


def call_loss(func: LossFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Returns the result of `func`, one of `LOSS_FUNCTIONS`, and marks it as a loss.

    Raises:
        Error: the device does not support this form of the loss.
    """
    special = _SPECIAL.get(func)
    if special is not None:
        return special(_bound(func, args, kwargs))
    return _marked(func(*args, **kwargs), func)


def call_loss_operator(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Returns the result of `func`, one of `LOSS_OPERATORS`, and marks the loss.

    The module of an exported program calls operators where its source called functions.

    Raises:
        Error: the device does not support this form of the loss.
    """
    name = LOSS_OPERATORS[func]
    arguments = dict(zip(_argument_names(name), args, strict=False)) | dict(kwargs)
    if "self" in arguments:
        arguments["input"] = arguments.pop("self")
    if isinstance(arguments.get("reduction"), int):
        arguments["reduction"] = _REDUCTIONS[arguments["reduction"]]
    if "out" in arguments or (name == "kl_div" and arguments.get("reduction") == "sum"):
        # The sum is not the loss: an exported program divides it by the number of rows later.
        return func(*args, **kwargs)
    value = call_loss(_OPERATORS[name], (), arguments)
    return (value, *func(*args, **kwargs)[1:]) if name.endswith("_forward") else value


def _argument_names(operator: str) -> list[str]:
    packet = getattr(torch.ops.aten, operator)
    schema = getattr(packet, packet.overloads()[0])._schema
    return [argument.name for argument in schema.arguments]


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
        # With probabilities as targets, PopTorch marks no loss, because it does not call nll_loss.
        return value
    return _marked(_zero_without_targets(value, call.arguments), F.cross_entropy)


def _zero_without_targets(value: torch.Tensor, arguments: Mapping[str, Any]) -> torch.Tensor:
    """Returns 0 for the mean over no targets, where PyTorch returns NaN."""
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

# Functions that count as a loss when forward calls them. Source: PopTorch's supported losses.
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

# Names of reductions, indexed by the number that operators use.
_REDUCTIONS = ("none", "mean", "sum")
# Functions that compute the same losses as operators, by the operator's name.
_OPERATORS: dict[str, LossFunction] = {
    "cross_entropy_loss": F.cross_entropy,
    **dict.fromkeys(("nll_loss", "nll_loss2d", "nll_loss_nd"), F.nll_loss),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), F.nll_loss),
    **{
        name: getattr(F, name)
        for name in (
            *("l1_loss", "mse_loss", "smooth_l1_loss", "soft_margin_loss", "kl_div", "ctc_loss"),
            *("hinge_embedding_loss", "margin_ranking_loss", "cosine_embedding_loss"),
            *("binary_cross_entropy", "binary_cross_entropy_with_logits", "poisson_nll_loss"),
            "triplet_margin_loss",
        )
    },
}


def _callables(operator: str) -> Iterator[Callable[..., Any]]:
    """Yields the objects that a program may call to run an operator."""
    packet = getattr(torch.ops.aten, operator)
    yield packet
    for overload in packet.overloads():
        yield getattr(packet, overload)
    for home in (torch, native_functions):
        if hasattr(home, operator):
            yield getattr(home, operator)


# Callable forms of the loss operators, with the names of the operators.
LOSS_OPERATORS: dict[Callable[..., Any], str] = {
    each: name for name in _OPERATORS for each in _callables(name)
}
