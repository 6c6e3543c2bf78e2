"""Finds the C++ rule for the metadata of an operation's results, if there is one.

The rules are operations of the library `poptorch_emu_metadata` (`csrc/metadata/`), and the meta
kernels of our own operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from poptorch_emu import _C
from poptorch_emu.torch_versions import has_kernel_for_dispatch_key, registered_operator

# Exceptions of a rule for arguments that it does not handle. PyTorch's own rule is then used.
NOT_TAKEN = (IndexError, RuntimeError, TypeError, ValueError)


def find(func: Any, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Returns the rule that computes results of `func` from meta tensors, or None."""
    is_number = len(args) > 1 and type(args[1]) in (bool, int, float)
    if is_number and isinstance(func._schema.arguments[1].type, torch.TensorType):
        return _find(func, "Scalar")  # Rules accept no number for a tensor.
    return _find(func, func._overloadname)


def made_by(func: Any, *given: torch.Tensor) -> torch.Tensor:
    """Returns the result of `func`, which has a rule, for meta tensors.

    PyTorch's own kernels for meta tensors may load SymPy, which takes time.
    """
    rule = find(func, given)
    assert rule is not None
    result: torch.Tensor = rule(*given)
    return result


def is_ours(func: Any) -> bool:
    """Returns whether an operation is ours and has a C++ kernel for meta tensors."""
    return func.namespace == "poptorch_emu" and _find(func, func._overloadname) is func


@cache
def _find(func: Any, overload: str) -> Callable[..., Any] | None:
    namespace, _, name = func._schema.name.partition("::")
    if namespace == "poptorch_emu":
        return func if _has_kernel_in_cpp(func) else None
    if func._schema.name not in _names():
        return None
    _C.define_metadata_rules(name)
    return getattr(getattr(torch.ops.poptorch_emu_metadata, name), overload, None)


@cache
def _names() -> set[str]:
    return _C.metadata_rule_names()


def _has_kernel_in_cpp(func: Any) -> bool:
    """Returns whether one of our operations has a kernel for meta tensors that is not in Python."""
    entry = registered_operator(func._schema.name)
    has_kernel: bool = has_kernel_for_dispatch_key(func.name(), "Meta")
    return has_kernel and entry.fake_impl.kernel is None
