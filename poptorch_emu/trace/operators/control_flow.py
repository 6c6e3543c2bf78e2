"""Records loops and branches in a graph, with their gradients.

A body is recorded once as a region. If a gradient may be needed, a second region recomputes the
body and differentiates it. For a loop, this region runs in reverse over the states before each
iteration, which forward stores. For a branch, it runs for the taken side only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.control import COND, FOR_LOOP
from poptorch_emu.ir.text import type_text
from poptorch_emu.structure import as_list
from poptorch_emu.torch_versions import get_current_function_mode_stack, pytree
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.recording.regions import Region, Tensors, current, record_region

Body = Callable[..., Any]


def for_loop(count: int, body: Body, inputs: Tensors) -> Tensors:
    """Records a loop that runs `body` `count` times; see `poptorch.for_loop`."""
    with _for_values_only():
        forward = record_region("for_loop", inputs, lambda states: _call(body, states))
    _check_same_types("poptorch.for_loop", "inputs", inputs, "outputs of body", forward.outputs)
    wanted = [tensor for tensor in forward.captured if _is_trained(tensor)]
    if not any(map(_is_trained, [*inputs, *wanted])):
        with torch.no_grad():
            return _run_loop(forward, count, inputs, [])
    forward.return_parameters(len(inputs))
    backward = _record_loop_gradient(body, inputs, forward, wanted)
    plan = _LoopPlan(count, len(inputs), forward, backward, wanted)
    return list(_Loop.apply(plan, *inputs, *wanted))  # type: ignore[no-untyped-call]


def cond(
    condition: torch.Tensor,
    then_body: Body,
    then_inputs: Tensors,
    else_body: Body,
    else_inputs: Tensors,
) -> Tensors:
    """Records a branch; see `poptorch.cond`."""
    branches = (_bound(then_body, then_inputs), _bound(else_body, else_inputs))
    with _for_values_only():
        forward = tuple(
            record_region(name, [], branch)
            for name, branch in zip(("then", "else"), branches, strict=True)
        )
    first, second = (region.outputs for region in forward)
    _check_same_types("poptorch.cond", "outputs of then_body", first, "of else_body", second)
    captured = {id(tensor): tensor for region in forward for tensor in region.captured}
    wanted = [tensor for tensor in captured.values() if _is_trained(tensor)]
    types = [type_text(output) for output in first]
    if not wanted:
        with torch.no_grad():
            return _run_branch(condition, forward, [], types)
    gradients = [output for output in first if output.is_floating_point()]
    backward = tuple(
        record_region(
            "gradient",
            gradients,
            lambda given, branch=branch: _differentiated(branch, [], wanted, given)[1],  # type: ignore[misc]
            repeats=region.name,
        )
        for branch, region in zip(branches, forward, strict=True)
    )
    plan = _BranchPlan(condition, forward, backward, types)
    return list(_Branch.apply(plan, *wanted))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _LoopPlan:
    count: int
    num_states: int
    forward: Region
    backward: Region
    wanted: Tensors


class _Loop(torch.autograd.Function):
    """A loop as one operation of autograd, for the states and the captured tensors."""

    @staticmethod
    def forward(ctx: Any, plan: _LoopPlan, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.plan = plan
        inputs = list(tensors[: plan.num_states])
        results = _run_loop(plan.forward, plan.count, inputs, list(map(type_text, inputs)))
        states, ctx.entries = results[: plan.num_states], results[plan.num_states :]
        ctx.mark_non_differentiable(*(s for s in states if not s.is_floating_point()))
        return tuple(states)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        plan: _LoopPlan = ctx.plan
        is_float = [entry.is_floating_point() for entry in ctx.entries]
        given = [g for g, f in zip(gradients, is_float, strict=True) if f]
        sums = [torch.zeros_like(tensor) for tensor in plan.wanted]
        results: Tensors = FOR_LOOP(
            plan.backward.name,
            plan.count,
            True,
            [*given, *sums],
            ctx.entries,
            plan.backward.captured,
            [],
        )
        rest = iter(results)
        of_states = [next(rest) if f else None for f in is_float]
        return None, *of_states, *rest


def _run_loop(region: Region, count: int, states: Tensors, collected: list[str]) -> Tensors:
    results: Tensors = FOR_LOOP(region.name, count, False, states, [], region.captured, collected)
    return results


def _record_loop_gradient(body: Body, inputs: Tensors, forward: Region, wanted: Tensors) -> Region:
    """Records one backward step, from the gradients after an iteration to those before it.

    The step carries the gradients of the floating-point states, and then the sums of the gradients
    of captured tensors. It scans the states before the iteration.
    """
    states = [state for state in inputs if state.is_floating_point()]

    def step(parameters: Tensors) -> Tensors:
        given = parameters[: len(states)]
        sums = parameters[len(states) : len(states) + len(wanted)]
        entries = parameters[len(states) + len(wanted) :]
        of_states, of_captured = _differentiated(
            lambda values: _call(body, values), entries, wanted, given
        )
        return [*of_states, *(total + g for total, g in zip(sums, of_captured, strict=True))]

    return record_region("gradient", [*states, *wanted, *inputs], step, repeats=forward.name)


@dataclass(frozen=True)
class _BranchPlan:
    condition: torch.Tensor
    forward: tuple[Region, ...]
    backward: tuple[Region, ...]
    types: list[str]


class _Branch(torch.autograd.Function):
    """A branch as one operation of autograd, for the captured tensors."""

    @staticmethod
    def forward(ctx: Any, plan: _BranchPlan, *wanted: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.plan = plan
        ctx.types = [type_text(tensor) for tensor in wanted]
        results = _run_branch(plan.condition, plan.forward, [], plan.types)
        ctx.mark_non_differentiable(*(r for r in results if not r.is_floating_point()))
        ctx.is_float = [result.is_floating_point() for result in results]
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        plan: _BranchPlan = ctx.plan
        given = [g for g, f in zip(gradients, ctx.is_float, strict=True) if f]
        return None, *_run_branch(plan.condition, plan.backward, given, ctx.types)


def _run_branch(
    condition: torch.Tensor, regions: tuple[Region, ...], given: Tensors, types: list[str]
) -> Tensors:
    first, second = regions
    results: Tensors = COND(
        condition,
        first.name,
        second.name,
        [*given, *first.captured],
        [*given, *second.captured],
        types,
    )
    return results


def _differentiated(
    body: Callable[[Tensors], Tensors],
    states: Tensors,
    wanted: Tensors,
    gradients: Tensors,
) -> tuple[Tensors, Tensors]:
    """Runs `body` and returns the gradients of its floating-point states and of `wanted`.

    Args:
        body: function of the states, which also reads the outside tensors `wanted`.
        states: fake tensors for the arguments of the body.
        wanted: tensors from outside, replaced by leaves so that the derivative ends there.
        gradients: gradient of each floating-point result.
    """
    values = [s.detach().requires_grad_() if s.is_floating_point() else s for s in states]
    leaves = {id(tensor): tensor.detach().requires_grad_() for tensor in wanted}
    with torch.enable_grad():
        with _Substitution(leaves):
            outputs = body(values)
    results = [output for output in outputs if output.is_floating_point()]
    pairs = [pair for pair in zip(results, gradients, strict=True) if pair[0].requires_grad]
    targets = [value for value in values if value.requires_grad] + list(leaves.values())
    if not pairs or not targets:
        found: Sequence[torch.Tensor | None] = [None] * len(targets)
    else:
        outputs, given = map(list, zip(*pairs, strict=True))
        found = torch.autograd.grad(outputs, targets, given, allow_unused=True)
    filled = [
        torch.zeros_like(target) if gradient is None else gradient
        for target, gradient in zip(targets, found, strict=True)
    ]
    split = len(filled) - len(leaves)
    return filled[:split], filled[split:]


class _Substitution(TorchFunctionMode):
    """Replaces some tensors, found by their ids, in the arguments of every function of `torch`.

    A nested substitution applies to the tensors that the outer one has inserted.
    """

    def __init__(self, replacements: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        modes = get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        self._outer = [mode for mode in modes if isinstance(mode, _Substitution)][-1:]
        self._replacements = replacements

    def replace(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor that replaces `tensor`."""
        for outer in self._outer:
            tensor = outer.replace(tensor)
        return self._replacements.get(id(tensor), tensor)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.replace, (args, dict(kwargs or {})))
        return func(*args, **kwargs)


def _bound(body: Body, inputs: Tensors) -> Callable[[Tensors], Tensors]:
    """Returns `body` as a function without inputs, so that its inputs are captured."""
    return lambda _: _call(body, inputs)


def _call(body: Body, inputs: Tensors) -> Tensors:
    """Calls the user's body on copies, so that its changes in place stay inside."""
    result = body(*(value.clone() for value in inputs))
    outputs = as_list(result)
    for index, output in enumerate(outputs):
        if not isinstance(output, torch.Tensor):
            raise compiler_error(
                f"A body of poptorch.for_loop or poptorch.cond at {user_source()} returned "
                f"{type(output)} as output {index}; return a tensor, or a list of tensors."
            )
    # An output may be a tensor from outside. The alias makes substitutions see it.
    return [torch.ops.aten.alias(output) for output in outputs]


def _check_same_types(
    function: str, left: str, first: Tensors, right: str, second: Tensors
) -> None:
    """Raises unless both lists hold tensors of the same types and shapes."""
    types, others = type_text(first), type_text(second)
    if types != others:
        raise compiler_error(
            f"{function} at {user_source()}: the {left} are {types}, but the {right} are {others}. "
            "Both must have the same number of tensors, with the same shapes and types."
        )


def _for_values_only() -> AbstractContextManager[object]:
    """In training, keeps the operations of a body out of the outer autograd graph.

    The derivative is recorded separately. Tensors outside stay unchanged if the body changes them.
    """
    return torch.no_grad() if current().is_training else nullcontext()


def _is_trained(tensor: torch.Tensor) -> bool:
    return (
        current().is_training
        and torch.is_grad_enabled()
        and tensor.requires_grad
        and tensor.is_floating_point()
    )
