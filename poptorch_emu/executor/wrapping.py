"""Makes reads of a model that is being trained return the newest weights.

While a training wrapper lives, the weights are on the device. The model, its parameters and its
buffers get classes that copy the weights back before a read (`synced_tensors.py`); `unwrap`
restores the old classes. A pickle or a state dict only contains plain PyTorch objects.
"""

from __future__ import annotations

import copy
import copyreg
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.executor.synced_tensors import (
    Link,
    Synced,
    SyncedBuffer,
    links_of,
    own_class,
    plain,
    put_on_tensor,
    take_off_tensor,
    tensors_of,
)
from poptorch_emu.trace.module_state import check_initialised

_MODEL_READS = frozenset({"_parameters", "_buffers", "forward"})


def is_wrapped(model: torch.nn.Module) -> bool:
    """Returns whether a training wrapper holds `model`, or held it when it was collected."""
    return hasattr(type(model), "_poptorch_link")


def link_of(model: torch.nn.Module) -> Link | None:
    """Returns the link to the executor that wrapped `model` itself for training."""
    return getattr(type(model), "_poptorch_link", None)


def wrap(model: torch.nn.Module, link: Link) -> None:
    """Changes the classes of `model`, its parameters and buffers so that reads sync.

    If `link` has already wrapped the model, this only adds new parameters.

    Args:
        model: the user's module; its class becomes `Poptorch<Name>`.
        link: link to the executor that trains the model.

    Raises:
        Error: a buffer has a class of its own, or a lazy module is not initialised.
    """
    check_initialised(model)
    for name, buffer in model.named_buffers():
        if type(buffer) not in (torch.Tensor, torch.nn.Buffer, SyncedBuffer):
            raise make_error(
                f"All buffers must be an instance of torch.Tensor (Got {type(buffer)} for {name}). "
                "Register a plain tensor."
            )
    cls = type(model) if link_of(model) is link else _wrapped_class(type(model), link)
    put_on(model, link, cls)


def put_on(model: torch.nn.Module, link: Link, cls: type[torch.nn.Module]) -> None:
    """Gives `model` the class `cls`, and makes its parameters and buffers follow `link`."""
    for tensor in list(tensors_of(model)):
        put_on_tensor(tensor, link)
    model.__class__ = cls
    link.models.add(model)


def twin_of(model: torch.nn.Module) -> torch.nn.Module:
    """Returns another module with the same attributes, which a wrapper runs.

    A `__copy__` of the user's is called. `__reduce__` and `__getstate__` are not, because they may
    leave out attributes that `forward` reads, or make other weights.
    """
    link, cls = link_of(model), type(model)
    if hasattr(cls if link is None else _class_below(model), "__copy__"):
        return copy.copy(model)
    twin = object.__new__(cls)
    vars(twin).update(vars(model))
    if link is not None:
        link.models.add(twin)
    return twin


@contextmanager
def settled(model: torch.nn.Module) -> Iterator[None]:
    """Copies the weights back once. Reads of `model` inside do not sync again, which saves time."""
    for link in links_of(model):
        link.sync()
    synced = [value for value in tensors_of(model) if isinstance(value, Synced)]
    wrapped = [module for module in model.modules() if is_wrapped(module)]
    classes = [(value, type(value), _class_below(value)) for value in (*synced, *wrapped)]
    for value, _, below in classes:
        value.__class__ = below
    try:
        yield
    finally:
        for value, cls, _ in classes:
            value.__class__ = cls


def unwrap(model: torch.nn.Module, link: Link) -> None:
    """Restores the classes of `model`, its shallow copies and their tensors."""
    for wrapped in {*link.models, model}:
        take_off(wrapped, link)
    link.models.clear()


def take_off(model: torch.nn.Module, link: Link) -> None:
    """Undoes `put_on`."""
    for tensor in list(tensors_of(model)):
        take_off_tensor(tensor, link)
    if link_of(model) is link:
        model.__class__ = _class_below(model)


def _class_below(value: Any) -> Any:
    if isinstance(value, Synced):
        return own_class(value)  # type: ignore[arg-type]
    return type(value)._poptorch_original


@contextmanager
def _as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Restores the class of `model` for calls of its own methods."""
    cls = type(model)
    model.__class__ = _class_below(model)
    try:
        yield
    finally:
        model.__class__ = cls


def _wrapped_class(original: type[torch.nn.Module], link: Link) -> type[torch.nn.Module]:
    """Returns the class that replaces the user's while a model is being trained."""

    class Wrapped(original):  # type: ignore[misc, valid-type]
        _poptorch_original = original
        _poptorch_link = link

        def __getattribute__(self, name: str) -> Any:
            attributes = object.__getattribute__(self, "__dict__")
            if name in _MODEL_READS or name in attributes.get("_parameters", ()):
                link.sync()
            return super().__getattribute__(name)

        def copyWeightsToHostIfNeeded(self) -> bool:
            """Copies the weights back if they are newer on the device; returns whether (exact)."""
            return link.sync()

        def destroy(self) -> None:
            """Releases the device and unwraps the model (exact)."""
            if link.trainer is None:
                unwrap(self, link)
            else:
                link.trainer.destroy()

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            """Returns plain tensors that share their storage with the parameters (exact)."""
            link.sync()
            state = super().state_dict(*args, **kwargs)
            seen: dict[int, torch.Tensor] = {}
            result: OrderedDict[str, Any] = OrderedDict(
                (key, seen.setdefault(id(value), _plain_entry(value)))
                for key, value in state.items()
            )
            if hasattr(state, "_metadata"):
                result._metadata = state._metadata  # type: ignore[attr-defined]
            return result

        def __reduce_ex__(self, protocol: Any) -> Any:
            link.sync()
            with _as_it_was(self):
                make, arguments, *state = self.__reduce_ex__(protocol)
            return (*_constructor(make, arguments), *state)

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            link.sync()
            with _as_it_was(self):
                return copy.deepcopy(self, memo)

        def __copy__(self) -> Any:
            with _as_it_was(self):
                duplicate = copy.copy(self)
            put_on(duplicate, link, type(self))
            return duplicate

    Wrapped.__name__ = Wrapped.__qualname__ = f"Poptorch{original.__name__}"
    Wrapped.__module__ = original.__module__
    return Wrapped


def _constructor(make: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns another form of `copyreg.__newobj__`, which pickle rejects for a different class."""
    name = getattr(make, "__name__", "")
    if name == "__newobj__":
        cls, *others = arguments
        if cls.__new__ is object.__new__ and not others:
            return copyreg._reconstructor, (cls, object, None)  # type: ignore[attr-defined]
        return _rebuild, arguments
    if name == "__newobj_ex__":
        cls, positional, named = arguments
        return partial(_rebuild, cls, *positional, **named), ()
    return make, arguments


def _rebuild(cls: type[torch.nn.Module], *args: Any, **kwargs: Any) -> torch.nn.Module:
    return cls.__new__(cls, *args, **kwargs)


def _plain_entry(value: Any) -> Any:
    return plain(value) if isinstance(value, Synced) else value  # type: ignore[arg-type]
