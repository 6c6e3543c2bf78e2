"""Gradients of tapes and updates of optimisers in functions that are captured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.capture_state import Capture, Update
from poptorch_emu.keras.keras_2.old_optimizers import is_unscaled_by_program


def gradient(
    capture: Capture, target: Any, sources: Any, output_gradients: Any, *, gives_zeros: bool
) -> Any:
    """Returns the gradients of tensors, in the structure of the sources.

    Args:
        capture: capture of the function that needs the gradients.
        target: structure of tensors; the elements of all of them are summed.
        sources: structure of Keras variables and tensors.
        output_gradients: factors of the targets; `None` for 1.
        gives_zeros: whether the gradient of an unconnected source is zero instead of `None`.
    """
    targets = keras.tree.flatten(target)
    weights = (
        [None] * len(targets) if output_gradients is None else keras.tree.flatten(output_gradients)
    )
    total = sum(
        (each if weight is None else each * weight).sum()
        for each, weight in zip(targets, weights, strict=True)
    )
    flat = keras.tree.flatten(sources)
    values = [_value_of(source) for source in flat]
    found = _derived(total, values)
    for index, (source, value) in enumerate(zip(flat, values, strict=True)):
        each = found[index]
        if each is None and gives_zeros:
            found[index] = torch.zeros_like(value)
        elif each is not None:
            capture.origins[id(each)] = (each, total, source)
    return keras.tree.pack_sequence_as(sources, found)


def watch(tensors: Any) -> None:
    """Makes tensors valid sources of gradients."""
    for each in keras.tree.flatten(tensors):
        if isinstance(each, torch.Tensor) and not each.requires_grad:
            each.requires_grad_()


def apply(
    capture: Capture, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any] | None
) -> None:
    """Records that an optimiser updates variables with gradients.

    Gradients returned by a tape are those of its target. Other gradients become the gradients of a
    sum of products, from which autograd recovers them. Keras divides by the optimiser's loss scale
    factor, because the program has scaled its loss; the device scales and unscales by itself.

    Raises:
        ValueError: there is no gradient.
    """
    if variables is None:
        variables = optimizer._trainable_variables
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    if not pairs:
        raise ValueError(
            "No gradients provided for any variable: the loss depends on none of them. Compute it "
            "inside of the GradientTape, from the outputs of the model."
        )
    if not optimizer.built:
        optimizer.build(list(variables))
    loss, scale = _loss_of(capture, pairs), optimizer.loss_scale_factor
    if scale is not None and not is_unscaled_by_program(optimizer):
        loss = loss / scale
    capture.update(Update(optimizer, [v for _, v in pairs], loss, [g for g, _ in pairs]))


def _loss_of(capture: Capture, pairs: Iterable[tuple[Any, Any]]) -> torch.Tensor:
    """Returns a scalar whose gradients are those in the pairs."""
    totals = []
    for each, variable in pairs:
        _, total, source = capture.origins.get(id(each), (None, None, None))
        totals.append(total if source is variable else None)
    if isinstance(totals[0], torch.Tensor) and all(total is totals[0] for total in totals):
        return totals[0]
    products = [(each.detach() * variable.value).sum() for each, variable in pairs]
    return torch.stack([product.float() for product in products]).sum()


def _derived(total: Any, values: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    needed = [value for value in values if value.requires_grad]
    if not needed or not isinstance(total, torch.Tensor) or not total.requires_grad:
        return [None] * len(values)
    found = iter(torch.autograd.grad(total, needed, allow_unused=True, retain_graph=True))
    return [next(found) if value.requires_grad else None for value in values]


def _value_of(source: Any) -> torch.Tensor:
    value = source.value if isinstance(source, keras.Variable) else source
    if not isinstance(value, torch.Tensor):
        raise compiler_error(
            f"GradientTape.gradient takes variables of Keras and tensors on the IPU, not "
            f"{source!r}. Pass model.trainable_variables, or a tensor that tape.watch() has seen."
        )
    return value
