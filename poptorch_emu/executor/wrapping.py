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
from poptorch_emu.executor.device_lock import HOST_TENSORS
from poptorch_emu.executor.synced_tensors import (
    Link,
    Synced,
    SyncedBuffer,
    plain,
    put_on_tensor,
    settled,
    take_off_tensor,
    tensors_of,
)
from poptorch_emu.trace.model_state.module_state import check_initialised
from poptorch_emu.trace.pytorch.slots import shallow_copy

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
    with HOST_TENSORS:
        for tensor in list(tensors_of(model)):
            put_on_tensor(tensor, link)
        model.__class__ = cls
        link.models.add(model)


def unwrap(model: torch.nn.Module, link: Link) -> None:
    """Restores the classes of `model`, its shallow copies and their tensors."""
    for wrapped in {*link.models, model}:
        take_off(wrapped, link)
    link.models.clear()


def take_off(model: torch.nn.Module, link: Link) -> None:
    """Takes back `put_on`."""
    with HOST_TENSORS:
        for tensor in list(tensors_of(model)):
            take_off_tensor(tensor, link)
        if link_of(model) is link:
            model.__class__ = _class_below(model)


def traced_copy(model: torch.nn.Module) -> torch.nn.Module:
    """Returns a shallow copy in the user's class, which is traced in place of `model`.

    Both share the dicts of parameters and buffers, so that they have the same stand-ins.
    """
    if not is_wrapped(model):
        return shallow_copy(model)
    with _as_it_was(model):
        return shallow_copy(model)


def twin_of(model: torch.nn.Module) -> torch.nn.Module:
    """Returns a shallow copy of the same class, whose reads sync if those of `model` do."""
    twin, link = traced_copy(model), link_of(model)
    if link is not None:
        put_on(twin, link, type(model))
    return twin


def _class_below(model: torch.nn.Module) -> Any:
    cls: Any = type(model)
    return cls._poptorch_original


@contextmanager
def _as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Restores the original class of `model` while the context is active."""
    with settled(model):
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
            # `super` would fail if another thread restores the model's original class meanwhile.
            return original.__getattribute__(self, name)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Calls the plain model, with the weights of one step."""
            with settled(self):
                return original.__call__(self, *args, **kwargs)

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
            """Returns plain tensors that share their storage with the parameters (exact).

            In another thread than the one that trains they are copies: the weights of one step, no
            matter what is trained and read meanwhile.
            """
            with settled(self):
                state = original.state_dict(self, *args, **kwargs)
                return _plain_state(state, is_copied=not link.trains_here)

        def __reduce_ex__(self, protocol: Any) -> Any:
            with _as_it_was(self):
                make, arguments, *state = self.__reduce_ex__(protocol)
            return (*_constructor(make, arguments), *state)

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
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


def _plain_state(state: Any, *, is_copied: bool) -> OrderedDict[str, Any]:
    """Returns a state dict with plain tensors; entries that were one tensor still are.

    Args:
        state: what `torch.nn.Module.state_dict` returned.
        is_copied: whether the result has storage of its own.
    """
    seen: dict[int, torch.Tensor] = {}
    entry = _copied_entry if is_copied else _plain_entry
    result: OrderedDict[str, Any] = OrderedDict(
        (key, seen.setdefault(id(value), entry(value))) for key, value in state.items()
    )
    if hasattr(state, "_metadata"):
        result._metadata = state._metadata  # type: ignore[attr-defined]
    return result


def _plain_entry(value: Any) -> Any:
    return plain(value) if isinstance(value, Synced) else value  # type: ignore[arg-type]


def _copied_entry(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    duplicate = plain(value)
    duplicate.data = duplicate.data.clone()
    return duplicate
