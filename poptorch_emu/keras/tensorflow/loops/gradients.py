"""Gradients of tapes and updates of optimisers in functions that are captured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.capture_state import Capture, Update
from poptorch_emu.keras.capture.symbolic_values import entered, left
from poptorch_emu.keras.capture.tensorflow_variables import counterpart, is_variable, value_of
from poptorch_emu.keras.optimizers.wrapped_optimizers import settings_of
from poptorch_emu.keras.tensorflow.loops.tapes import record_of


def gradient(
    capture: Capture,
    original: Any,
    tape: Any,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    unconnected_gradients: Any = "none",
) -> Any:
    """Returns the gradients of tensors, in the structure of the sources.

    Args:
        capture: capture of the function that needs the gradients.
        original: method of `tf.GradientTape` that this function replaces.
        tape: tape that has recorded the operations.
        target: structure of tensors; the elements of all of them are summed.
        sources: structure of variables and tensors.
        output_gradients: factors of the targets; `None` for 1.
        unconnected_gradients: "zero" for a gradient of zero instead of `None` for an unconnected
            source.

    Raises:
        Error: a gradient has a part that the tape has not recorded.
        RuntimeError: the tape has computed gradients before, and is not persistent.
    """
    gives_zeros = getattr(unconnected_gradients, "value", unconnected_gradients) == "zero"
    record = record_of(tape)
    record.begin_gradient(capture)
    target, sources, output_gradients = left(target), left(sources), left(output_gradients)
    targets = [_value_of(each) for each in keras.tree.flatten(target)]
    weights = (
        [None] * len(targets) if output_gradients is None else keras.tree.flatten(output_gradients)
    )
    flat = keras.tree.flatten(sources)
    values = [_value_of(source) for source in flat]
    parts = [
        _parts(capture, source, value) if record.watches(source, value) else []
        for source, value in zip(flat, values, strict=True)
    ]
    known = [each for listed in parts for each in listed]
    pairs = [
        (each, weight)
        for each, weight in zip(targets, weights, strict=True)
        if each.requires_grad
        and (any(each is source for source in known) or record.has(each.grad_fn))
    ]
    record.check([each for each, _ in pairs], known)
    with torch.enable_grad():
        total = sum((x if weight is None else x * weight).sum() for x, weight in pairs)
    derived = iter(_derived(total, known, keeps_graph=bool(capture.tapes)))
    found: list[Any] = []
    for source, value, listed in zip(flat, values, parts, strict=True):
        terms = [each for each in (next(derived) for _ in listed) if each is not None]
        each = sum(terms[1:], terms[0]).to(value.dtype) if terms else None
        if each is not None:
            capture.origins[id(each)] = (each, total, source)
        found.append(torch.zeros_like(value) if each is None and gives_zeros else each)
    return entered(keras.tree.pack_sequence_as(sources, found))


def _parts(capture: Capture, source: Any, value: torch.Tensor) -> list[torch.Tensor]:
    """Returns the tensors that operations have read from a source: all values of a variable."""
    stored = counterpart(source) if is_variable(source) else source
    own = stored.value if isinstance(stored, keras.Variable) else value
    return [own, *capture.former_values.get(id(stored), ())]


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
    with torch.enable_grad():  # The loss may be computed after the tape was closed.
        loss, scale = _loss_of(capture, pairs), optimizer.loss_scale_factor
        if scale is not None and not settings_of(optimizer).is_unscaled_by_program:
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


def _derived(
    total: Any, values: Sequence[torch.Tensor], *, keeps_graph: bool
) -> list[torch.Tensor | None]:
    needed = [value for value in values if value.requires_grad]
    if not needed or not isinstance(total, torch.Tensor) or not total.requires_grad:
        return [None] * len(values)
    found = iter(
        torch.autograd.grad(
            total, needed, allow_unused=True, retain_graph=True, create_graph=keeps_graph
        )
    )
    return [next(found) if value.requires_grad else None for value in values]


def _value_of(source: Any) -> torch.Tensor:
    if is_variable(source):
        return value_of(source)
    value = source.value if isinstance(source, keras.Variable) else source
    if not isinstance(value, torch.Tensor):
        raise compiler_error(
            f"GradientTape.gradient takes variables and tensors on the IPU, not {source!r}. Pass "
            "model.trainable_variables, or a tensor that tape.watch() has seen."
        )
    return value
