"""Makes a model that is being trained show its trained weights whenever somebody looks.

While a training wrapper lives, the weights are on the device. The user's parameters and buffers get
classes that bring the weights back before anything is read; `unwrap` gives the old classes back.
What is pickled or put in a state dict is plain PyTorch.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.trace.module_state import check_initialised

_SYNC = "_poptorch_sync"
_OUR_NAMES = frozenset({_SYNC, "__class__", "__dict__"})
_MODEL_READS = frozenset({"_parameters", "_buffers", "forward"})


class _Link:
    """Holds the executor weakly: when it is gone, reading simply stops syncing."""

    def __init__(self, sync: Callable[[], Any]) -> None:
        self._sync = weakref.WeakMethod(sync)
        self._is_running = False

    def __call__(self) -> None:
        sync = self._sync()
        if sync is not None and not self._is_running:
            self._is_running = True
            try:
                sync()
            finally:
                self._is_running = False

    @property
    def owner(self) -> Any:
        """The executor, or `None` when it is gone."""
        sync = self._sync()
        return getattr(sync, "__self__", None)

    def __deepcopy__(self, _: Any) -> _Link:
        return self

    def __reduce__(self) -> Any:
        return (_dead_link, ())


def _dead_link() -> Callable[[], None]:
    return _do_nothing


def _do_nothing() -> None:
    """Stands in for the link in an object that came from another process."""


class _Synced:
    """Mixed into parameters and buffers: every read brings the weights back first."""

    def __getattribute__(self, name: str) -> Any:
        if name not in _OUR_NAMES:
            sync_of(self)()
        return super().__getattribute__(name)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Syncs, then runs `func` as if its arguments were plain tensors."""
        for value in torch.utils._pytree.tree_iter((args, kwargs)):
            if isinstance(value, _Synced):
                sync_of(value)()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return plain(self).__reduce_ex__(protocol)  # type: ignore[arg-type, no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        sync_of(self)()
        # Into a memo of its own: the plain tensor is gone afterwards, and its id is used again.
        return plain(self).__deepcopy__({})  # type: ignore[arg-type, no-untyped-call]


class SyncedParameter(_Synced, torch.nn.Parameter):
    """A parameter whose newest value may be on the device."""


class SyncedBuffer(_Synced, torch.Tensor):
    """A buffer whose newest value may be on the device."""


def sync_of(value: object) -> Callable[[], None]:
    """Returns what brings the weights back, for a wrapped tensor or model."""
    attributes: dict[str, Any] = object.__getattribute__(value, "__dict__")
    link: Callable[[], None] = attributes.get(_SYNC, _do_nothing)
    return link


def owner_of(model: torch.nn.Module) -> Any:
    """Returns the executor that trains the parameters of `model`, or `None`."""
    for value in (*model.parameters(), *model.buffers()):
        link = sync_of(value)
        if isinstance(link, _Link):
            return link.owner
    return None


def trainer_of(model: torch.nn.Module) -> Any:
    """Returns the executor that wrapped `model` itself for training, or `None`."""
    link = sync_of(model)
    return link.owner if isinstance(link, _Link) else None


def plain(value: torch.Tensor) -> torch.Tensor:
    """Returns the tensor behind `value` in a plain class, sharing its storage."""
    with torch._C.DisableTorchFunctionSubclass():
        data = value.detach().as_subclass(torch.Tensor)
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(data, requires_grad=value.requires_grad)
        return data


def is_wrapped(model: torch.nn.Module) -> bool:
    """Returns whether a training wrapper holds `model`."""
    return hasattr(type(model), "_poptorch_original")


def wrap(model: torch.nn.Module, sync: Callable[[], Any], destroy: Callable[[], None]) -> None:
    """Changes the classes of `model`, its parameters and buffers so that reads sync.

    Args:
        model: the user's module; its class becomes `Poptorch<Name>`.
        sync: bound method that copies the weights to the host if they are stale; held weakly.
        destroy: bound method behind the model's new `destroy`; held weakly.

    Raises:
        Error: a buffer is of a class of its own, or a lazy module is not initialised.
    """
    check_initialised(model)
    for name, buffer in model.named_buffers():
        if type(buffer) not in (torch.Tensor, torch.nn.Buffer):
            raise make_error(
                f"All buffers must be an instance of torch.Tensor (Got {type(buffer)} for {name}). "
                "Register a plain tensor."
            )
    put_on(model, _Link(sync), _wrapped_class(type(model), weakref.WeakMethod(destroy)))


def put_on(model: torch.nn.Module, link: Callable[[], None], cls: type[torch.nn.Module]) -> None:
    """Gives `model` the class `cls`, and its parameters and buffers those that call `link`."""
    for parameter in model.parameters():
        parameter.__dict__[_SYNC] = link
        parameter.__class__ = SyncedParameter
    for buffer in model.buffers():
        buffer.__dict__[_SYNC] = link
        buffer.__class__ = SyncedBuffer
    model.__dict__[_SYNC] = link
    model.__class__ = cls


@contextmanager
def settled(model: torch.nn.Module) -> Iterator[None]:
    """Brings the weights back once; reads of `model` inside do not ask again, which takes time."""
    synced = [v for v in (*model.parameters(), *model.buffers()) if isinstance(v, _Synced)]
    for sync in {id(link): link for link in map(sync_of, synced)}.values():
        sync()
    classes = [type(value) for value in synced]
    for value in synced:
        value.__class__ = _own_class(value)  # type: ignore[assignment]
    try:
        yield
    finally:
        for value, cls in zip(synced, classes, strict=True):
            value.__class__ = cls


def _own_class(value: _Synced) -> type[torch.Tensor]:
    return torch.nn.Parameter if isinstance(value, SyncedParameter) else torch.Tensor


def unwrap(model: torch.nn.Module) -> None:
    """Gives `model`, its parameters and buffers their own classes back."""
    for value in (*model.parameters(), *model.buffers()):
        if isinstance(value, _Synced):
            object.__getattribute__(value, "__dict__").pop(_SYNC, None)
            value.__class__ = _own_class(value)  # type: ignore[assignment]
    if is_wrapped(model):
        model.__class__ = type(model)._poptorch_original  # type: ignore[attr-defined]
    object.__getattribute__(model, "__dict__").pop(_SYNC, None)


def _wrapped_class(
    original: type[torch.nn.Module], destroy: weakref.WeakMethod[Any]
) -> type[torch.nn.Module]:
    """Returns the class that stands in for the user's while a model is being trained."""

    class Wrapped(original):  # type: ignore[misc, valid-type]
        _poptorch_original = original

        def __getattribute__(self, name: str) -> Any:
            attributes = object.__getattribute__(self, "__dict__")
            if name in _MODEL_READS or name in attributes.get("_parameters", ()):
                sync_of(self)()
            return super().__getattribute__(name)

        def copyWeightsToHostIfNeeded(self) -> None:
            """Brings the weights back from the device if they are newer there (exact)."""
            sync_of(self)()

        def destroy(self) -> None:
            """Releases the device and takes the wrapping off (exact)."""
            release = destroy()
            if release is not None:
                release()

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            """Returns plain tensors that share their storage with the parameters (exact)."""
            sync_of(self)()
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
            sync_of(self)()
            attributes = {
                key: value
                for key, value in object.__getattribute__(self, "__dict__").items()
                if key != _SYNC
            }
            return (_rebuild, (original,), attributes)

    Wrapped.__name__ = Wrapped.__qualname__ = f"Poptorch{original.__name__}"
    Wrapped.__module__ = original.__module__
    return Wrapped


def _rebuild(original: type[torch.nn.Module]) -> torch.nn.Module:
    return original.__new__(original)


def _plain_entry(value: Any) -> Any:
    return plain(value) if isinstance(value, (SyncedParameter, SyncedBuffer)) else value
