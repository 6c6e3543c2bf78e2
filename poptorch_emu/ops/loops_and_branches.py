"""Loops and branches that the device executes as loops and branches."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.structure import as_list
from poptorch_emu.trace.operators import control_flow
from poptorch_emu.trace.places import blocks

Body = Callable[..., Any]

_LARGEST_COUNT = 2**63 - 1


def for_loop(count: int, body: Body, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Runs `body` `count` times, each time on the results of the time before (exact).

    The body is traced once for its results and, in training, once more for its gradients. It may
    read tensors from outside. Tensors outside keep their values if the body changes them in
    place. Random numbers differ in each iteration. Outside a trace the body runs once, whatever
    `count` is, as in PopTorch.

    Args:
        count: number of iterations.
        body: function of as many tensors as `inputs` has that returns tensors of the same number,
            shapes and dtypes.
        inputs: arguments of the first iteration.

    Returns:
        The results of the last iteration, as a list.

    Raises:
        ValueError: `inputs` is not a list of tensors.
        Error: `inputs` is empty, `count` is not an integer, or the number, shape or dtype of the
            body's results differs.

    Example:
        >>> class Doubled(torch.nn.Module):
        ...     def forward(self, x):
        ...         return poptorch.for_loop(3, lambda y: [2 * y], [x])[0]
        >>> poptorch.inferenceModel(Doubled())(torch.ones(2))
        tensor([8., 8.])
    """
    _check_tensors("poptorch.for_loop expects input tensors (inputs)", inputs)
    if not blocks.is_tracing():
        return as_list(body(*(value.clone() for value in inputs)))
    if not inputs:
        raise compiler_error(
            "poptorch.for_loop was given no inputs, so no value could pass from one iteration to "
            "the next. Pass the tensors that the body changes."
        )
    count = _count(count)
    if count < 1:
        return [value.clone() for value in inputs]
    return control_flow.for_loop(count, body, inputs)


def _count(given: Any) -> int:
    """Returns the number of iterations.

    Raises:
        Error: the number is not an integer, or needs more than 64 bits.
    """
    try:
        count = operator.index(given)
    except TypeError:
        count = _LARGEST_COUNT + 1
    if count > _LARGEST_COUNT:
        raise compiler_error(
            f"poptorch.for_loop was given the count {given!r} of type {type(given).__name__}, but "
            "takes an integer of at most 63 bits: int(count)."
        )
    return count


def cond(
    condition: torch.Tensor,
    then_body: Body,
    then_inps: list[torch.Tensor],
    else_body: Body,
    else_inps: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Runs one of two bodies; the condition is evaluated when the model runs (exact).

    Both bodies are traced. They may read tensors from outside. Tensors outside keep their values
    if a body changes them in place.

    Args:
        condition: a boolean tensor of one element.
        then_body: function that runs if the condition is true.
        then_inps: arguments of `then_body`; may be empty.
        else_body: function that runs otherwise; its results have the number, shapes and dtypes of
            those of `then_body`.
        else_inps: arguments of `else_body`; may be empty.

    Returns:
        The results of the body that ran, as a list.

    Raises:
        ValueError: the inputs are not lists of tensors.
        ValueError: the inputs are not lists of tensors.
        Error: the condition is not a tensor, or the bodies return different numbers, shapes or
            types of tensors.

    Example:
        >>> class Flipped(torch.nn.Module):
        ...     def forward(self, x):
        ...         flip = lambda y: [-y]
        ...         leave = lambda y: [y.clone()]
        ...         return poptorch.cond(x.sum() < 0, flip, [x], leave, [x])[0]
        >>> poptorch.inferenceModel(Flipped())(torch.tensor([-3.0, 1.0]))
        tensor([ 3., -1.])
    """
    expectation = "poptorch.cond expects then_inps and else_inps tensors"
    _check_tensors(expectation, then_inps)
    _check_tensors(expectation, else_inps)
    if not blocks.is_tracing():
        return as_list(then_body(*then_inps) if condition else else_body(*else_inps))
    if not isinstance(condition, torch.Tensor):
        raise compiler_error(
            "The condition of poptorch.cond must be a boolean tensor of one element, not "
            f"{condition!r} of {type(condition)}. Use Python's `if` for a condition that is known "
            "while the model is traced."
        )
    return control_flow.cond(condition, then_body, then_inps, else_body, else_inps)


def _check_tensors(expectation: str, inputs: Any) -> None:
    if not isinstance(inputs, list):
        raise ValueError(f"{expectation} in a list, but got {type(inputs)} (Object is not list)")
    for index, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"{expectation}, but got {type(value)} "
                f"(Object contained in list at index {index} is not torch.tensor)"
            )
