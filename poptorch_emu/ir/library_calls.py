"""Operators of other libraries as two nodes of a graph: the call and its gradient.

For `ns::name` they are `poptorch_emu_library::ns__name` and `..._gradient`, which are defined when
a model first uses `ns::name`. Both have the expected types of their results as arguments, because a
graph has static shapes and the library could return others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.control import empty
from poptorch_emu.ir.text import type_text
from poptorch_emu.structure import as_list
from poptorch_emu.torch_versions import (
    DispatchKey,
    ForceDispatchKeyGuard,
    OpOverload,
    dispatch_tls_local_exclude_set,
    dispatch_tls_local_include_set,
    pytree,
)
from poptorch_emu.troubleshooting import Topic

_NAMESPACE = "poptorch_emu_library"
_AUTOGRAD = (
    DispatchKey.AutogradCPU,
    DispatchKey.AutogradOther,
    DispatchKey.AutogradFunctionality,
    DispatchKey.ADInplaceOrView,
)
_library = torch.library.Library(_NAMESPACE, "DEF")  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class LibraryCall:
    """The two operators that replace a library's operator in a graph.

    Attributes:
        forward: operator with the library operator's arguments and the types of its results as
            text.
        gradient: operator with the gradient of each result, the library operator's arguments, the
            types of the returned gradients as text, and the numbers of the tensors among the
            arguments whose gradients are returned.
    """

    forward: OpOverload
    gradient: OpOverload


@cache
def library_call(operator: OpOverload) -> LibraryCall:
    """Returns the two operators for `operator`."""
    schema = operator._schema
    name = "__".join(filter(None, (*schema.name.split("::"), schema.overload_name)))
    arguments = str(schema).partition("(")[2].rpartition(") ->")[0]
    keywords = "" if "*" in arguments else ", *"
    forward = _define(
        name, f"({arguments}{keywords}, str[] results) -> Tensor[]", _forward_of(operator)
    )
    gradient = _define(
        f"{name}_gradient",
        f"(Tensor[] gradients, {arguments}{keywords}, str[] results, int[] wanted) -> Tensor[]",
        _gradient_of(operator),
    )
    return LibraryCall(forward, gradient)


def _define(name: str, schema: str, kernel: Callable[..., Any]) -> OpOverload:
    def forms(*args: Any, results: Sequence[str], **kwargs: Any) -> list[torch.Tensor]:
        return [empty(text) for text in results]

    _library.define(name + schema)  # type: ignore[no-untyped-call]
    _library.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{_NAMESPACE}::{name}", forms, lib=_library)
    operator: OpOverload = getattr(getattr(torch.ops, _NAMESPACE), name).default
    return operator


def _forward_of(operator: OpOverload) -> Callable[..., list[torch.Tensor]]:
    def forward(*args: Any, results: Sequence[str], **kwargs: Any) -> list[torch.Tensor]:
        values = as_list(operator(*args, **kwargs))
        _check(operator, values, results)
        return values

    return forward


def _gradient_of(operator: OpOverload) -> Callable[..., list[torch.Tensor]]:
    def gradient(
        gradients: Sequence[torch.Tensor],
        *args: Any,
        results: Sequence[str],
        wanted: Sequence[int],
        **kwargs: Any,
    ) -> list[torch.Tensor]:
        with _with_autograd():
            args, kwargs, leaves = with_leaves(args, kwargs, wanted)
            values = as_list(operator(*args, **kwargs))
            ends = [(v, g) for v, g in zip(values, gradients, strict=True) if v.requires_grad]
            found = torch.autograd.grad(
                [value for value, _ in ends], leaves, [g for _, g in ends], allow_unused=True
            )
        pairs = zip(found, leaves, strict=True)
        given = [torch.zeros_like(leaf) if g is None else g.contiguous() for g, leaf in pairs]
        _check(operator, given, results)
        return given

    return gradient


def with_leaves(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: Sequence[int]
) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
    """Returns the arguments with the tensors numbered `wanted` as leaves, and these leaves."""
    values, spec = pytree.tree_flatten((args, dict(kwargs)))
    places = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
    leaves = []
    for number in wanted:
        values[places[number]] = values[places[number]].detach().requires_grad_()
        leaves.append(values[places[number]])
    args, kwargs = pytree.tree_unflatten(values, spec)
    return args, dict(kwargs), leaves


def _check(operator: OpOverload, values: Sequence[torch.Tensor], results: Sequence[str]) -> None:
    """Raises an error if the types of results differ from those in the compiled graph."""
    found = [type_text(value) for value in values]
    if found != list(results):
        raise compiler_error(
            f"{operator} returned {', '.join(found)}, but when the model was traced "
            f"{', '.join(results)}: the shape of its results depends on data, and a compiled graph "
            "has static shapes. Give it the size as an argument where it has one, or run that part "
            f"on the host with poptorch.CPU; {Topic.DATA_DEPENDENT_SHAPE}"
        )


@contextmanager
def _with_autograd() -> Iterator[None]:
    """Turns on autograd, which is off inside the engine."""
    included = dispatch_tls_local_include_set()
    excluded = dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD:
        excluded = excluded.remove(key)
    with (
        ForceDispatchKeyGuard(included, excluded),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        yield
