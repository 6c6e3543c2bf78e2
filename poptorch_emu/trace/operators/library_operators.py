"""Operators of other libraries that only have CPU kernels.

The shapes of the results come from running the operator's own kernel on known values and zeros. The
graph holds one node for the operator, and one in backward that calls the library's autograd.
Libraries with separate kernels, autograd and fake kernels, as PyTorch recommends, do not need this,
because the recorder sees their operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.library_calls import library_call, with_leaves
from poptorch_emu.ir.text import type_text
from poptorch_emu.structure import as_list
from poptorch_emu.torch_versions import (
    DisableTorchFunction,
    OpOverload,
    OpOverloadPacket,
    disable_current_modes,
    has_kernel_for_dispatch_key,
    pytree,
    resolve_packet,
)
from poptorch_emu.trace.operators.scatter_operators import SCATTER_OPERATORS
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.recording import regions
from poptorch_emu.trace.recording.host_moves import uploaded
from poptorch_emu.trace.values.known_values import known_value

# Namespaces of PyTorch and of this package. Operators in "poptorch" call our own functions.
_OWN = frozenset({"aten", "prim", "prims", "poptorch", "poptorch_emu", "poptorch_emu_library"})


def takes(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether `func` is another library's operator, called with IPU tensors."""
    if not isinstance(func, (OpOverload, OpOverloadPacket)):
        return False
    tensors = [v for v in pytree.tree_leaves((args, dict(kwargs))) if isinstance(v, torch.Tensor)]
    if not any(value.device.type == "ipu" for value in tensors):
        return False
    operator = _overload(func, args, kwargs)
    return operator._schema.name in SCATTER_OPERATORS or _runs_on_cpu_only(operator)


def call(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Records a call of an operator if `takes` has returned True.

    Raises:
        Error: the operator changes its arguments, or returns something other than tensors.
    """
    operator = _overload(func, args, kwargs)
    args, kwargs = pytree.tree_map_only(torch.Tensor, uploaded, (args, dict(kwargs)))
    scatter = SCATTER_OPERATORS.get(operator._schema.name)
    if scatter is not None:
        return scatter(*args, **kwargs)
    values, spec = pytree.tree_flatten((args, kwargs))
    return _Call.apply(operator, spec, *values)  # type: ignore[no-untyped-call]


class _Call(torch.autograd.Function):
    """One operator with the derivative of its library."""

    @staticmethod
    def forward(ctx: Any, operator: OpOverload, spec: Any, *values: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(list(values), spec)
        places = [place for place, v in enumerate(values) if isinstance(v, torch.Tensor)]
        ctx.operator, ctx.spec, ctx.places = operator, spec, places
        ctx.literals = [None if place in places else v for place, v in enumerate(values)]
        ctx.save_for_backward(*(values[place] for place in places))
        ctx.wanted = [n for n, place in enumerate(places) if ctx.needs_input_grad[2 + place]]
        examples, structure = _examples(operator, args, kwargs, ctx.wanted)
        texts = [type_text(value) for value in examples]
        results = library_call(operator).forward(*args, **kwargs, results=texts)
        constants = (r for r, e in zip(results, examples, strict=True) if not e.requires_grad)
        ctx.mark_non_differentiable(*constants)
        return results[0] if structure is None else structure(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        values, tensors = list(ctx.literals), ctx.saved_tensors
        for place, tensor in zip(ctx.places, tensors, strict=True):
            values[place] = tensor
        args, kwargs = pytree.tree_unflatten(values, ctx.spec)
        results = library_call(ctx.operator).gradient(
            list(gradients),
            *args,
            **kwargs,
            results=[type_text(tensors[number]) for number in ctx.wanted],
            wanted=ctx.wanted,
        )
        found = dict(zip((ctx.places[n] for n in ctx.wanted), results, strict=True))
        return None, None, *(found.get(place) for place in range(len(values)))


def _examples(
    operator: OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    wanted: Sequence[int],
) -> tuple[list[torch.Tensor], Any]:
    """Runs `operator` on the CPU, on known arguments and on zeros.

    Returns:
        The results, and a function that converts their list to the operator's return type; None if
        that is one tensor.
    """
    state = regions.current().recorder

    def example(value: torch.Tensor) -> torch.Tensor:
        known = known_value(state.graph, state.node_of(value))
        return torch.zeros(value.shape, dtype=value.dtype) if known is None else known.clone()

    args, kwargs = pytree.tree_map_only(torch.Tensor, example, (args, dict(kwargs)))
    with disable_current_modes(), DisableTorchFunction(), torch.enable_grad():
        args, kwargs, _ = with_leaves(args, kwargs, wanted)
        try:
            result = operator(*args, **kwargs)
        except RuntimeError as cause:
            raise _failed(operator, cause) from cause
    results = as_list(result)
    if not results or not all(isinstance(value, torch.Tensor) for value in results):
        raise compiler_error(
            f"{operator} at {user_source()} returns {type(result).__name__}, not tensors alone: a "
            "compiled graph holds nothing else. Run that part on the host with poptorch.CPU."
        )
    _check_new(operator, results, (args, kwargs))
    return results, None if isinstance(result, torch.Tensor) else type(result)


def _failed(operator: OpOverload, cause: RuntimeError) -> Error:
    first = str(cause).splitlines()[0]
    return compiler_error(
        f"{operator} at {user_source()} was asked for the shape of its result by running it on "
        f"zeros, and failed: {first}. Run that part on the host with poptorch.CPU."
    )


def _check_new(operator: OpOverload, results: Sequence[torch.Tensor], arguments: Any) -> None:
    """Raises if a result shares memory with an argument, because the operator writes there."""
    given = {
        value.untyped_storage()._cdata
        for value in pytree.tree_leaves(arguments)
        if isinstance(value, torch.Tensor)
    }
    if any(value.untyped_storage()._cdata in given for value in results):
        raise compiler_error(
            f"{operator} at {user_source()} writes its result into an argument, which a compiled "
            "graph cannot see. Leave out the argument that takes the result (`out`), or run that "
            "part on the host with poptorch.CPU."
        )


def _overload(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OpOverload:
    if isinstance(func, OpOverload):
        return func
    overloads = func.overloads()
    name = overloads[0]
    if len(overloads) > 1:
        name = resolve_packet(func._qualified_op_name, *args, **kwargs)
    operator: OpOverload = getattr(func, name)
    return operator


@cache
def _runs_on_cpu_only(operator: OpOverload) -> bool:
    """Returns whether an operator has one composite kernel, or autograd for the CPU only."""
    if operator.namespace in _OWN:
        return False
    name = operator.name()  # type: ignore[no-untyped-call]
    has = has_kernel_for_dispatch_key
    if has(name, "CompositeImplicitAutograd"):
        return True
    return has(name, "AutogradCPU") and not has(name, "Autograd")
