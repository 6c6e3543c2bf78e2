"""Finds tensors in arguments and results that a later call would not replace.

Each call replaces the tensors in structures (`structure.py`). Any other value that holds a tensor
(a set, a view of a dict, a closure) would pass the tensor of the first call to the model, or return
a fake tensor to the user.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from poptorch_emu.errors import Error, compiler_error, make_error
from poptorch_emu.object_parts import context_of, is_registered
from poptorch_emu.structure import find_parser, flatten_tensors, items_of, rebuild
from poptorch_emu.torch_versions import FakeTensor
from poptorch_emu.trace.operators.masked_rows import MaskedRows
from poptorch_emu.trace.values.host_backed import HostBacked

# The search stops at modules, whose tensors are restored later, and at types without tensors.
_ENDS = (torch.nn.Module, torch.Tensor, type, ModuleType, CodeType, str, bytes, int, float)


def check_outputs(outputs: Any) -> None:
    """Raises if an output of `forward` hides tensors of the graph.

    Raises:
        Error: an output is lazy, or hides fake tensors.
    """
    for where, value, is_lost in _leaves(outputs, "", {}):
        if isinstance(value, MaskedRows):
            raise value.error
        if is_lost or isinstance(value, Iterator) or _reaches(value, (FakeTensor, HostBacked)):
            raise _refused_output(type(value), where)


def check_inputs(arguments: Iterable[tuple[str, Any]]) -> None:
    """Raises if an argument hides tensors, which later calls would not replace.

    Args:
        arguments: values, by the names of their parameters.

    Raises:
        Error: an argument hides tensors.
    """
    for name, argument in arguments:
        for where, value, is_lost in _leaves(argument, name, {}):
            if is_lost or _reaches(value, (torch.Tensor,)):
                raise _refused_input(type(value), where)


def _leaves(value: Any, where: str, seen: dict[int, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yields everything except tensors and structures that are rebuilt, with its place.

    A container that would lose something when it is rebuilt comes with True.
    """
    if find_parser(value) is not None or isinstance(value, torch.Tensor) or id(value) in seen:
        return
    items = items_of(value)
    if items is None:
        yield where, value, False
        return
    is_container = isinstance(value, (dict, list, tuple))
    if isinstance(value, dict):
        yield from ((f"{where}, as a key", key, False) for key in value)
    elif not is_container:
        seen[id(value)] = value
        yield where, context_of(value), False
    has_names = not (is_container or is_registered(value))
    for key, item in items.items():
        yield from _leaves(item, f"{where}.{key}" if has_names else f"{where}[{key!r}]", seen)
    if type(value) in (list, tuple, dict) or not (is_container or is_registered(value)):
        return
    if (lost := _lost(value)) is not None:
        yield f"{where}.{lost}" if lost else where, value, True


def _lost(value: Any) -> str | None:
    """Returns an attribute that a copy of a value, made from its parts, would lack.

    Returns:
        "" if no copy can be made, and None if no attribute is missing.
    """
    try:
        copy = rebuild(value, iter(flatten_tensors(value)))
    except Exception:
        return ""
    kept = vars(copy) if hasattr(copy, "__dict__") else {}
    return next((name for name in getattr(value, "__dict__", {}) if name not in kept), None)


def _reaches(value: Any, kinds: tuple[type, ...]) -> bool:
    """Returns whether an object refers to a tensor of some kinds, directly or indirectly."""
    seen: set[int] = set()
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, kinds):
            return True
        if id(value) not in seen and not isinstance(value, _ENDS):
            seen.add(id(value))
            pending += _referents(value)
    return False


def _referents(value: Any) -> list[Any]:
    """Returns the referents of an object; for a function, without the globals of its file."""
    if isinstance(value, FunctionType):
        return [value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]
    if isinstance(value, np.ndarray):  # The collector skips arrays.
        return value.ravel().tolist() if value.dtype.hasobject else []
    return gc.get_referents(value)


def _refused_output(kind: type, where: str) -> Error:
    place = f" (at {where.removeprefix(', ')})" if where else ""
    return compiler_error(
        f"forward returns a value of type {kind.__name__}{place}, in which tensors cannot be "
        "found. Return tensors in lists, tuples, dicts, dataclasses or attributes of objects, "
        "make the type known with poptorch.registerCustomArgParser, or leave the value out (a "
        "cache of transformers: use_cache=False)."
    )


def _refused_input(kind: type, where: str) -> Error:
    return make_error(
        f"Invalid input: {where} is of type {kind.__name__} and holds tensors that no later call "
        "would replace. Pass tensors in lists, tuples, dicts, dataclasses or attributes of "
        "objects, or make the type known with poptorch.registerCustomArgParser."
    )
