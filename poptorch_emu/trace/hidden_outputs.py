"""Finds tensors of a trace where nobody would replace them in what `forward` returned.

Tensors in lists, tuples, named tuples, dicts and types with a parser are replaced by results at
each call. Whatever else holds one (a set, a view of a dict, a dataclass, a closure) would give the
user a stand-in without values.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.structure import find_parser, flatten_tensors, rebuild
from poptorch_emu.torch_versions import FakeTensor
from poptorch_emu.trace.host_backed import HostBacked

# A module's tensors are put back after the trace; the others hold no values of one call.
_ENDS = (torch.nn.Module, torch.Tensor, type, ModuleType, CodeType, str, bytes, int, float)


def check(outputs: Any) -> None:
    """Raises if tensors of the graph are hidden among what `forward` returned.

    Raises:
        Error: a value is lazy, or holds stand-ins that are not looked for.
    """
    for where, value in _leaves(outputs, ""):
        if isinstance(value, Iterator) or _holds_stand_in([value]):
            raise _error(type(value), where)


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yields all that is neither a tensor nor a container which is rebuilt, with its place."""
    if find_parser(value) is not None or isinstance(value, torch.Tensor):
        return
    if isinstance(value, dict):
        yield from ((f"{where}, as a key", key) for key in value)
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        yield where, value
        return
    for key, item in items:
        yield from _leaves(item, f"{where}[{key!r}]")
    _check_rebuilt(value, where)


def _check_rebuilt(container: Any, where: str) -> None:
    """Refuses a container of a type of its own that would lose something at each call."""
    if type(container) in (list, tuple, dict):
        return
    try:
        copy = rebuild(container, iter(flatten_tensors(container)))
    except Exception as cause:
        raise _error(type(container), where) from cause
    kept = vars(copy) if hasattr(copy, "__dict__") else {}
    lost = [name for name in getattr(container, "__dict__", {}) if name not in kept]
    if lost:
        raise _error(type(container), f"{where}.{lost[0]}")


def _holds_stand_in(pending: list[Any]) -> bool:
    """Returns whether a tensor of the trace can be reached from some objects."""
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if isinstance(value, (FakeTensor, HostBacked)):
            return True
        if id(value) not in seen and not isinstance(value, _ENDS):
            seen.add(id(value))
            pending += _referents(value)
    return False


def _referents(value: Any) -> list[Any]:
    """Returns what an object refers to, for a function without the globals of its file."""
    if isinstance(value, FunctionType):
        return [value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]
    if isinstance(value, np.ndarray):  # The collector does not look into arrays.
        return value.ravel().tolist() if value.dtype.hasobject else []
    return gc.get_referents(value)


def _error(kind: type, where: str) -> Error:
    place = f" (at {where.removeprefix(', ')})" if where else ""
    return compiler_error(
        f"forward returns a value of type {kind.__name__}{place}, whose tensors are not looked "
        "for. Return tensors in lists, tuples, named tuples or dicts, or make the type known with "
        "poptorch.registerCustomArgParser."
    )
