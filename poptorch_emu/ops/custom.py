"""Custom operators, which are called by name and domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.text import type_text
from poptorch_emu.ops import custom_operators
from poptorch_emu.ops.attribute_lists import attributes_lists
from poptorch_emu.ops.attributes import check_attributes
from poptorch_emu.ops.custom_operators import CustomOperator
from poptorch_emu.structure import as_list
from poptorch_emu.trace.places import blocks
from poptorch_emu.trace.recording.regions import current

_INTEGERS = {torch.int32, torch.int64}
# PopART returns this operator's result flat; `custom_op` reshapes it to the example's shape.
_SHAPED_BY_EXAMPLE = "ReplicatedAllGather"


def custom_op(
    inputs: Sequence[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Sequence[torch.Tensor],
    attributes: Mapping[str, Any] | None = None,
) -> list[torch.Tensor]:
    """Runs the operator that was registered for `name` and `domain` (exact).

    Operators are looked up in this order:

    - operators of `poptorch_emu.emulator.register_custom_op`;
    - C++ operators of PyTorch: `name` in the namespace `domain`, with each dot replaced by an
      underscore, so that name "Cube" and domain "my.ops" stand for `torch.ops.my_ops.Cube`;
    - built-in replacements of C++ libraries for the IPU, which the guide's page on operations
      lists;
    - PopART's own operators ("ai.graphcore", "ai.onnx") that PyTorch can compute.

    Operators of the last two kinds return as many results as `example_outputs` has. Outside a
    trace they compute nothing and return `example_outputs` itself, as in PopTorch. Inputs are
    passed in order, attributes by keyword.

    Gradients: a Python operator is differentiated through its own operations, or by the function
    registered with it. A C++ operator is differentiated by its autograd kernel. Without a kernel,
    the operator `<name>Grad` of the same namespace is called with the gradients of all outputs,
    the inputs, and the attributes, and returns a gradient of each input.

    Args:
        inputs: tensors that the operator is called with.
        name: name of the operator.
        domain: domain of the operator.
        domain_version: version under which the operator was registered.
        example_outputs: tensors with the shapes and dtypes of the results; values do not matter.
        attributes: floats, ints, strings, or lists or tuples of one of them.

    Returns:
        The results, as a list.

    Raises:
        ValueError: an attribute has another type.
        Error: no such operator exists, or its results differ from `example_outputs` in shape or
            dtype.
    """
    given = dict(attributes or {})
    check_attributes(given)
    if attributes is not None:
        attributes_lists.append(given)
    operator = custom_operators.find(name, domain, domain_version)
    if operator.is_built_in and not blocks.is_tracing():
        return list(example_outputs)
    results = as_list(_apply(operator, list(inputs), given))
    if operator.name == _SHAPED_BY_EXAMPLE and operator.is_built_in:
        results = [_in_shape(r, e) for r, e in zip(results, example_outputs, strict=False)]
    if operator.is_built_in:
        results = [_as_example(r, e) for r, e in zip(results, example_outputs, strict=False)]
    found, expected = type_text(results), type_text(list(example_outputs))
    if found != expected:
        raise compiler_error(
            f"Custom operator {name!r} of domain {domain!r} returned {found}, but example_outputs "
            f"are {expected}. Both must have the same number of tensors, shapes and types."
        )
    return results


def _as_example(result: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """Converts integers to the dtype that the user expects: PopART's are int32, PyTorch's int64."""
    return result.to(example.dtype) if {result.dtype, example.dtype} == _INTEGERS else result


def _in_shape(result: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    return result.reshape(example.shape) if result.numel() == example.numel() else result


def _apply(operator: CustomOperator, inputs: list[torch.Tensor], attributes: dict[str, Any]) -> Any:
    wants_gradient = torch.is_grad_enabled() and any(value.requires_grad for value in inputs)
    is_inference = blocks.is_tracing() and not current().is_training
    if operator.backward is None or not wants_gradient or is_inference:
        return operator.forward(*inputs, **attributes)
    return _WithGradient.apply(operator, attributes, *inputs)  # type: ignore[no-untyped-call]


class _WithGradient(torch.autograd.Function):
    """An operator whose gradient is computed by a separate function."""

    @staticmethod
    def forward(
        ctx: Any, operator: CustomOperator, attributes: dict[str, Any], *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.operator, ctx.attributes = operator, attributes
        ctx.save_for_backward(*inputs)
        results = as_list(operator.forward(*inputs, **attributes))
        ctx.mark_non_differentiable(*(r for r in results if not r.is_floating_point()))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs = ctx.saved_tensors
        results = as_list(ctx.operator.backward(*gradients, *inputs, **ctx.attributes))
        if len(results) != len(inputs):
            raise compiler_error(
                f"The gradient of custom operator {ctx.operator.name!r} returned {len(results)} "
                f"tensors; return one for each of the {len(inputs)} inputs, or None."
            )
        return None, None, *results
