"""PyTorch's operators that take functions: `torch.cond`, `while_loop`, `scan` and `map`.

A branch is recorded like `poptorch.cond`. Loops over rows are unrolled, and so is a loop with a
condition, if the condition is known during the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.torch_versions import (
    HigherOrderOperator,
    cond_op,
    map_impl,
    pytree,
    scan_op,
    while_loop_op,
)
from poptorch_emu.trace.operators import control_flow
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.troubleshooting import Topic


def call(operator: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Records an operator that calls functions of the user.

    Raises:
        Error: the operator cannot be captured.
    """
    try:
        return _FORMS.get(operator, operator)(*args, **kwargs)
    except NotImplementedError as cause:
        raise compiler_error(
            f"torch.ops.higher_order.{operator} at {user_source()} cannot be captured. Write it "
            "with operations of torch, branch with poptorch.cond, loop with poptorch.for_loop, or "
            f"run that part on the host with poptorch.CPU; {Topic.UNSUPPORTED_OPERATOR}"
        ) from cause


def _cond(
    pred: torch.Tensor,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any] = (),
) -> Any:
    tensors, spec = pytree.tree_flatten(tuple(operands))
    structures: list[pytree.TreeSpec] = []

    def flat(branch: Callable[..., Any]) -> Callable[..., list[Any]]:
        def body(*values: torch.Tensor) -> list[Any]:
            outputs, structure = pytree.tree_flatten(branch(*pytree.tree_unflatten(values, spec)))
            structures.append(structure)
            return outputs

        return body

    condition = pred.reshape(())
    results = control_flow.cond(condition, flat(true_fn), tensors, flat(false_fn), tensors)
    first, second = structures[:2]
    if first != second:
        raise compiler_error(
            f"torch.cond at {user_source()}: true_fn returns {first}, but false_fn {second}. Both "
            "must return tensors in the same structure."
        )
    return pytree.tree_unflatten(results, first)


def _while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> Any:
    carried = tuple(carried_inputs)
    while _goes_on(cond_fn(*carried, *additional_inputs)):
        carried = tuple(body_fn(*carried, *additional_inputs))
    return carried


def _goes_on(condition: Any) -> bool:
    try:
        return bool(condition)
    except Error as cause:
        raise compiler_error(
            f"while_loop at {user_source()} ends on a condition that only exists when the model "
            "runs, but a compiled graph has loops of fixed length. Loop with poptorch.for_loop as "
            "often as may be needed, and keep the state by torch.where once the condition has "
            f"failed; {Topic.PYTHON_CONTROL_FLOW}"
        ) from cause


def _scan(
    combine_fn: Callable[..., tuple[Any, Any]],
    init: Sequence[torch.Tensor],
    xs: Sequence[torch.Tensor],
    additional_inputs: Sequence[Any] = (),
) -> Any:
    carry: Any = list(init)
    rows = []
    for row in zip(*(x.unbind(0) for x in xs), strict=True):
        carry, result = combine_fn(*pytree.tree_leaves(carry), *row, *additional_inputs)
        rows.append(result)
    return carry, _stacked(rows)


def _map(
    function: Callable[..., Any],
    xs: Sequence[torch.Tensor],
    pos_args: Sequence[Any],
    mutated_arg_indices: str = "",  # Since PyTorch 2.14.
) -> Any:
    rows = zip(*(x.unbind(0) for x in xs), strict=True)
    return _stacked([function(*row, *pos_args) for row in rows])


def _stacked(rows: Sequence[Any]) -> Any:
    """Returns one tree with the stacked tensors of several trees of the same structure."""
    return pytree.tree_map(
        lambda *values: None if values[0] is None else torch.stack(values), *rows
    )


_FORMS: dict[HigherOrderOperator, Callable[..., Any]] = {
    cond_op: _cond,
    map_impl: _map,
    scan_op: _scan,
    while_loop_op: _while_loop,
}
