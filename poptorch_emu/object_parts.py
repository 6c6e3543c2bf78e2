"""Parts of objects: the attributes of an instance, or its children in PyTorch's pytree.

Objects such as a key-value cache, a dataclass or a batch of graphs hold tensors in their parts. The
module does not depend on tensors: the layout of a class decides whether its instances can be copied
part by part.
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

# Modules of the standard library whose classes have instances with user-defined attributes.
_KEEPERS = frozenset({"argparse", "collections", "types"})
# Types whose instances are not divided into parts.
_WHOLE = (torch.nn.Module, Enum, Iterator)
# Results of `_has_plain_instances` by class.
_plain_classes = weakref.WeakKeyDictionary[type[Any], bool]()


def parts_of(value: Any) -> Mapping[Any, Any] | None:
    """Returns the parts of an object by name or index; `None` if it is not divided.

    Python's containers (lists, tuples and dicts) do not count as objects here.
    """
    kind = type(value)
    if kind in pytree.SUPPORTED_NODES:
        return dict(enumerate(pytree.SUPPORTED_NODES[kind].flatten_fn(value)[0]))
    return attributes_of(value) if _is_plain(kind) else None


def context_of(value: Any) -> Any:
    """Returns the pytree's context of an object: all that is needed beside its parts to build
    it."""
    node = pytree.SUPPORTED_NODES.get(type(value))
    return None if node is None else node.flatten_fn(value)[1]


def is_registered(value: Any) -> bool:
    """Returns whether PyTorch's pytree can build objects of this type from their parts."""
    return type(value) in pytree.SUPPORTED_NODES


def made_of(value: Any, parts: Sequence[Any]) -> Any:
    """Returns an object like `value` with other parts; the pytree must know its type."""
    return pytree.SUPPORTED_NODES[type(value)].unflatten_fn(list(parts), context_of(value))


def bare_copy(value: Any) -> Any:
    """Returns an instance of the class of `value` without attributes, running none of its code."""
    return _maker(type(value))(type(value))


def set_attributes(instance: Any, values: Mapping[str, Any]) -> None:
    """Sets attributes without the methods of the class, so that frozen dataclasses work, too."""
    own = getattr(instance, "__dict__", None)
    slots = set(_slots(type(instance)))
    for name, value in values.items():
        if name in slots or own is None:
            object.__setattr__(instance, name, value)
        else:
            own[name] = value


def attributes_of(value: Any) -> dict[str, Any]:
    """Returns the attributes of an instance itself, including those in slots."""
    found = dict(getattr(value, "__dict__", {}))
    for name in _slots(type(value)):
        if hasattr(value, name):
            found[name] = getattr(value, name)
    return found


def _slots(kind: type) -> Iterator[str]:
    """Yields the attribute names of the slots of a class."""
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
    """Returns whether instances of a class consist of their attributes alone.

    A class with a destructor does not count, because it may own a resource that a copy would free
    a second time.
    """
    if issubclass(kind, (*_WHOLE, type, weakref.ref)) or hasattr(kind, "__del__"):
        return False
    root = kind.__module__.partition(".")[0] if isinstance(kind.__module__, str) else ""
    if root in sys.stdlib_module_names and root not in _KEEPERS:
        return False
    try:
        _maker(kind)(kind)
    except TypeError:  # The class is built in or abstract.
        return False
    return True
