"""The dicts of a module's parameters and buffers, as the threads see them in a trace.

While a model is traced, the thread of the trace finds stand-ins in them. Other threads read and
write the module's own tensors meanwhile, so they can evaluate the model or save it.
"""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.rnn import RNNBase

from poptorch_emu.torch_versions import FakeTensor
from poptorch_emu.trace.pytorch.patches import patched

_KINDS = ("_parameters", "_buffers")


class _OfThread(threading.local):
    """The dicts of stand-ins that a thread sees, by the `id` of the dicts that they hide."""

    def __init__(self) -> None:
        self.hiding: Mapping[int, dict[str, Any]] = {}


_of_thread = _OfThread()


class _Slots(dict[str, Any]):
    """A dict of parameters or buffers; a thread may see another dict in its place.

    Pickles and copies are plain dicts.
    """

    def visible(self) -> dict[str, Any]:
        """Returns the dict that this thread sees: itself, or one of stand-ins."""
        return _of_thread.hiding.get(id(self), self)

    def __reduce_ex__(self, _: Any) -> Any:
        return dict, (self.copy(),)

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        self.update(other)
        return self


def _of_visible(name: str) -> Callable[..., Any]:
    of_dict = getattr(dict, name)

    @functools.wraps(of_dict)
    def method(self: _Slots, *args: Any, **kwargs: Any) -> Any:
        return of_dict(self.visible(), *args, **kwargs)

    return method


_METHODS = (
    "__contains__ __delitem__ __eq__ __getitem__ __iter__ __len__ __ne__ __or__ __repr__ "
    "__reversed__ __setitem__ clear copy get items keys pop popitem setdefault update values"
)
for _name in _METHODS.split():
    setattr(_Slots, _name, _of_visible(_name))

# The module that another one is a shallow copy of, with the same dicts.
_originals: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[torch.nn.Module]]
_originals = weakref.WeakKeyDictionary()


def shallow_copy(model: torch.nn.Module) -> torch.nn.Module:
    """Returns another module with the attributes of `model`, whose dicts it shares when traced.

    A `__copy__` of the user's is called. `__reduce__` and `__getstate__` are not, because they may
    leave out attributes that `forward` reads, or make other weights.
    """
    cls = type(model)
    if hasattr(cls, "__copy__"):
        duplicate: torch.nn.Module = copy.copy(model)
    else:
        duplicate = object.__new__(cls)
        vars(duplicate).update(vars(model))
    _originals[duplicate] = weakref.ref(model)
    return duplicate


@contextmanager
def private_slots(model: torch.nn.Module) -> Iterator[None]:
    """Gives this thread dicts of its own for all modules of `model`, which begin as copies.

    At the end tensors of the host under new names go to the modules. Entries that were removed or
    replaced are in the modules as they were.
    """
    places = list(_places(model))
    slots = {id(held): _Slots(held) for _, _, held in places}
    own = {id(each): dict(held) for held, each in ((p[2], slots[id(p[2])]) for p in places)}
    for attributes, kind, held in places:
        attributes[kind] = slots[id(held)]
    before, _of_thread.hiding = _of_thread.hiding, {**_of_thread.hiding, **own}
    try:
        with patched(RNNBase, _flat_weights=property(_flat_weights, _set_flat_weights)):
            yield
    finally:
        _of_thread.hiding = before
        for attributes, kind, held in places:
            shared = slots[id(held)]
            new = {key: value for key, value in own[id(shared)].items() if held.get(key) is None}
            shared.update(
                {key: value for key, value in new.items() if not isinstance(value, FakeTensor)}
            )
            _follow(held, shared)
            attributes[kind] = held


def _places(model: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Yields the attributes of each module, and the dicts there with their names."""
    modules = list(model.modules())
    original = _originals.get(model)
    while original is not None and (module := original()) is not None:
        modules.append(module)
        original = _originals.get(module)
    for module in modules:
        if not isinstance(module, torch.jit.ScriptModule):  # C++ holds these dicts.
            attributes = object.__getattribute__(module, "__dict__")
            yield from ((attributes, kind, attributes[kind]) for kind in _KINDS)


def _flat_weights(layer: RNNBase) -> list[torch.Tensor | None]:
    """Returns the weights of a recurrent layer, which keeps them in a list as well."""
    if _of_thread.hiding:
        return [getattr(layer, name, None) for name in layer._flat_weights_names]
    weights: list[torch.Tensor | None] = vars(layer)["_flat_weights"]
    return weights


def _set_flat_weights(layer: RNNBase, weights: list[torch.Tensor | None]) -> None:
    if not _of_thread.hiding:
        vars(layer)["_flat_weights"] = weights


def _follow(held: dict[str, Any], other: dict[str, Any]) -> None:
    """Gives `held` the entries of `other`, so that no entry is missing at any moment."""
    for key in held.keys() - other.keys():
        del held[key]
    held.update(other)
