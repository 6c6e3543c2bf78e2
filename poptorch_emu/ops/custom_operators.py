"""Look-up of the operator for a name and a domain.

Operators are looked up in the registry, among PyTorch's operators, among replacements of libraries
for PopART, and in the table of PopART's own operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.ops.named.named_table import named_operator, near_names
from poptorch_emu.ops.popart_operators import popart_names, popart_operator
from poptorch_emu.torch_versions import OpOverload, has_kernel_for_dispatch_key

Function = Callable[..., Any]


@dataclass(frozen=True)
class CustomOperator:
    """A custom operator.

    Attributes:
        forward: function of the inputs, with attributes by keyword, that returns one or more
            tensors.
        backward: function of the gradients of the outputs and then the inputs, with attributes by
            keyword, that returns a gradient, or `None`, for each input. If it is `None`, the
            operations of `forward` are differentiated.
        is_built_in: whether this package defines the operator. Its results are cut to the number
            of the example outputs and converted to their integer dtypes, and outside a trace it
            computes nothing.
    """

    name: str
    forward: Function
    backward: Function | None = None
    is_built_in: bool = False


_registered: dict[tuple[str, str, int], CustomOperator] = {}


def register_custom_op(
    name: str,
    domain: str,
    forward: Function,
    backward: Function | None = None,
    version: int = 1,
) -> None:
    """Registers a Python function as an operator that `poptorch.custom_op` finds (exact).

    The function is traced like the rest of a model, so it must consist of tensor operations; for
    other code, call `poptorch.CPU` inside it. A second registration replaces the first.

    Args:
        name: name as in `custom_op`.
        domain: domain as in `custom_op`.
        forward: function of the inputs, with attributes by keyword, that returns one or more
            tensors.
        backward: function of the gradients of the outputs and then the inputs, with attributes by
            keyword, that returns a gradient, or `None`, for each input. By default the operations
            of `forward` are differentiated.
        version: version as `domain_version` in `custom_op`.
    """
    _registered[domain, name, version] = CustomOperator(name, forward, backward)


def find(name: str, domain: str, version: int) -> CustomOperator:
    """Returns the operator of a name and a domain.

    Raises:
        Error: no such operator is registered; the message says how to register one.
    """
    operator = (
        _registered.get((domain, name, version))
        or _from_library(name, domain)
        or _built_in(name, domain, version)
    )
    if operator is None:
        known = sorted(f"{d!r}: {n!r} version {v}" for d, n, v in _registered)
        registered = [(d, n) for d, n, _ in _registered]
        near = near_names(name, domain, [*registered, *popart_names()])
        raise compiler_error(
            f"No custom operator {name!r} version {version} is registered for domain {domain!r}; "
            f"there are {', '.join(known) or 'none'}. "
            + (f"Operators of like names are {', '.join(near)} (version 1). " if near else "")
            + f"Register a Python function with "
            f"poptorch_emu.emulator.register_custom_op({name!r}, {domain!r}, forward, "
            f"version={version}), or load a C++ library that defines "
            f"{_namespace(domain)}::{name} with torch.ops.load_library(path)."
        )
    return operator


def _built_in(name: str, domain: str, version: int) -> CustomOperator | None:
    operator = named_operator(name, domain, version) or popart_operator(name, domain)
    return CustomOperator(name, operator, is_built_in=True) if operator is not None else None


def _from_library(name: str, domain: str) -> CustomOperator | None:
    forward = _library_operator(name, domain)
    if forward is None:
        return None
    if _has_autograd(forward):
        return CustomOperator(name, forward)
    gradient = _library_operator(f"{name}Grad", domain)
    return CustomOperator(name, forward, gradient or _missing_gradient(name, domain))


def _missing_gradient(name: str, domain: str) -> Function:
    def refuse(*arguments: Any, **attributes: Any) -> Any:
        raise compiler_error(
            f"Custom operator {name!r} of domain {domain!r} has no gradient, but the model trains "
            f"through it. Define {_namespace(domain)}::{name}Grad in its library (gradients of the "
            "outputs, inputs, attributes -> gradients of the inputs), or register a kernel for "
            "Autograd."
        )

    return refuse


def _library_operator(name: str, domain: str) -> OpOverload | None:
    packet = getattr(getattr(torch.ops, _namespace(domain)), name, None)
    if packet is None:
        return None
    operator: OpOverload = packet.default
    return operator


def _has_autograd(operator: OpOverload) -> bool:
    has = has_kernel_for_dispatch_key
    name = operator._schema.name
    return any(has(name, key) for key in ("Autograd", "CompositeImplicitAutograd"))


def _namespace(domain: str) -> str:
    return domain.replace(".", "_")
