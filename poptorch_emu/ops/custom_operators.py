"""Which operator stands for a name and domain.

It is looked for in the registry, among PyTorch's own, among those that were libraries of PopART,
and in PopART's own table.
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
    """An operator of the user.

    Attributes:
        forward: takes the inputs, and the attributes by keyword; returns a tensor or several.
        backward: takes the gradients of the outputs, then the inputs, and the attributes by
            keyword; returns a gradient, or `None`, for each input. Without it, forward's own
            operations are differentiated.
        is_built_in: whether it is one of ours, whose results take the examples' number and integer
            types, and which computes nothing outside a trace.
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
    """Makes a Python function the operator that `poptorch.custom_op` finds (exact).

    The function is traced like the rest of a model, so it must be made of tensor operations; for
    what is not, use `poptorch.CPU` inside it. A second registration replaces the first.

    Args:
        name: as in `custom_op`.
        domain: as in `custom_op`.
        forward: takes the inputs, and the attributes by keyword; returns a tensor or several.
        backward: takes the gradients of the outputs, then the inputs, and the attributes by
            keyword; returns a gradient, or `None`, for each input. By default the operations of
            `forward` are differentiated.
        version: as `domain_version` in `custom_op`.
    """
    _registered[domain, name, version] = CustomOperator(name, forward, backward)


def find(name: str, domain: str, version: int) -> CustomOperator:
    """Returns the operator of that name and domain.

    Raises:
        Error: there is none; the text says how to register one.
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
