"""Finds the rule in C++ for the metadata of an operation's results, where there is one.

The rules are operations of the library `poptorch_emu_metadata` (`csrc/metadata/`), and the kernels
for meta tensors of our own operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from poptorch_emu import _C
from poptorch_emu.torch_versions import has_kernel_for_dispatch_key, registered_operator

# What a rule raises for arguments that it does not take; PyTorch's own rule decides then.
NOT_TAKEN = (IndexError, RuntimeError, TypeError, ValueError)


def find(func: Any, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Returns what makes of meta tensors what `func` would make of tensors, or `None`."""
    is_number = len(args) > 1 and type(args[1]) in (bool, int, float)
    if is_number and isinstance(func._schema.arguments[1].type, torch.TensorType):
        return _find(func, "Scalar")  # PyTorch takes a number for a tensor, a rule does not.
    return _find(func, func._overloadname)


def is_ours(func: Any) -> bool:
    """Returns whether an operation is one of ours with a kernel in C++ for meta tensors."""
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
    """Returns whether an operation of ours has a kernel for meta tensors, and not in Python."""
    entry = registered_operator(func._schema.name)
    has_kernel: bool = has_kernel_for_dispatch_key(func.name(), "Meta")
    return has_kernel and entry.fake_impl.kernel is None
