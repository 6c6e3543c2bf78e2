"""Parts of objects: the attributes of an instance, or the children that PyTorch's pytree knows.

A key-value cache, a dataclass and a batch of graphs hold tensors in this way. Nothing here knows
tensors; classes decide by their layout whether their instances can be copied part by part.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch

from poptorch_emu.torch_versions import pytree

# Modules of Python whose instances keep attributes that the user gave them.
_KEEPERS = frozenset({"argparse", "collections", "types"})
# Instances that stand for themselves.
_WHOLE = (torch.nn.Module, Enum, Iterator)
# Classes that were asked about.
_plain_classes = weakref.WeakKeyDictionary[type[Any], bool]()


def parts_of(value: Any) -> Mapping[Any, Any] | None:
    """Returns the parts of an object by name or index; `None` if it is taken as a whole.

    Containers of Python (lists, tuples and dicts) are no objects here.
    """
    kind = type(value)
    if kind in pytree.SUPPORTED_NODES:
        return dict(enumerate(pytree.SUPPORTED_NODES[kind].flatten_fn(value)[0]))
    return attributes_of(value) if _is_plain(kind) else None


def context_of(value: Any) -> Any:
    """Returns everything beside the parts that an object is made of again, as the pytree has it."""
    node = pytree.SUPPORTED_NODES.get(type(value))
    return None if node is None else node.flatten_fn(value)[1]


def is_registered(value: Any) -> bool:
    """Returns whether PyTorch's pytree makes objects of this type from their parts."""
    return type(value) in pytree.SUPPORTED_NODES


def made_of(value: Any, parts: Sequence[Any]) -> Any:
    """Returns an object like `value`, of a type that the pytree knows, with other parts."""
    return pytree.SUPPORTED_NODES[type(value)].unflatten_fn(list(parts), context_of(value))


def bare_copy(value: Any) -> Any:
    """Returns an instance of the class of `value` without attributes; no code of the class runs."""
    return _maker(type(value))(type(value))


def set_attributes(instance: Any, values: Mapping[str, Any]) -> None:
    """Sets attributes past the methods of the class, so that frozen dataclasses take them, too."""
    own = getattr(instance, "__dict__", None)
    slots = set(_slots(type(instance)))
    for name, value in values.items():
        if name in slots or own is None:
            object.__setattr__(instance, name, value)
        else:
            own[name] = value


def attributes_of(value: Any) -> dict[str, Any]:
    """Returns the attributes of an instance itself, those in slots too."""
    found = dict(getattr(value, "__dict__", {}))
    for name in _slots(type(value)):
        if hasattr(value, name):
            found[name] = getattr(value, name)
    return found


def _slots(kind: type) -> Iterator[str]:
    """Yields the names of the slots of a class, as attributes have them."""
    for cls in kind.__mro__:
        names = vars(cls).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name in ("__dict__", "__weakref__"):
                continue
            is_private = name.startswith("__") and not name.endswith("__")
            yield f"_{cls.__name__.lstrip('_')}{name}" if is_private else name


def _maker(kind: type) -> Any:
    return SimpleNamespace.__new__ if issubclass(kind, SimpleNamespace) else object.__new__


def _is_plain(kind: type[Any]) -> bool:
    if kind not in _plain_classes:
        _plain_classes[kind] = _has_plain_instances(kind)
    return _plain_classes[kind]


def _has_plain_instances(kind: type[Any]) -> bool:
    """Returns whether instances of a class are nothing but their attributes.

    A class with a destructor may own something that a copy would give back twice.
    """
    if issubclass(kind, (*_WHOLE, type, weakref.ref)) or hasattr(kind, "__del__"):
        return False
    root = kind.__module__.partition(".")[0] if isinstance(kind.__module__, str) else ""
    if root in sys.stdlib_module_names and root not in _KEEPERS:
        return False
    try:
        _maker(kind)(kind)
    except TypeError:  # Of a built-in class, or abstract.
        return False
    return True
