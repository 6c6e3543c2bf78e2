"""Parameters and buffers that copy their newest values from the device before a read.

Each tensor has a *link* to each executor that trains it; modules may share parameters. Pickles,
deep copies and printed text are those of plain PyTorch.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch

from poptorch_emu.executor.captures import uncompiled
from poptorch_emu.executor.device_lock import HOST_TENSORS
from poptorch_emu.torch_versions import DisableTorchFunctionSubclass, pytree

_OWNERS = "_poptorch_owners"
# Names whose read copies no weights. `__class__` is not here: TorchScript reads only this
# attribute before C++ reads the memory.
_OUR_NAMES = frozenset({_OWNERS, "__dict__"})
# Attributes that belong to an executor and not to the tensor.
_OUR_ATTRIBUTES = frozenset({_OWNERS, "replicaGrouping"})


_READ_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]

# Number of changes of any tensor's links, so that results of `links_of` can be cached.
_num_changes = 0


class Trainer(Protocol):
    """Interface of an executor that trains."""

    def destroy(self) -> None:
        """Copies the weights back and unwraps the model."""


class TrainedWeights(Protocol):
    """Interface of the weights of an executor that trains.

    Attributes:
        is_ahead: whether the device has newer ones than the host.
    """

    is_ahead: bool

    def bring_home(self) -> bool:
        """Copies the weights back if the device has newer ones."""


class Link:
    """Weak reference to the executor that trains a model; without it, reads do not sync.

    `version` counts changes of the host's weights by the executor, and the other way round.
    `models` holds the wrapped model and its shallow copies.
    """

    def __init__(self, trainer: Trainer, weights: TrainedWeights) -> None:
        """Stores weak references to the executor and its weights."""
        self._trainer = weakref.ref(trainer)
        self._weights = weakref.ref(weights)
        self._quiet: set[int] = set()  # Threads that do not sync.
        self._training_thread: int | None = None
        self.version = 0
        self.models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    @property
    def trainer(self) -> Trainer | None:
        """The executor, or None if it no longer exists."""
        return self._trainer()

    @property
    def weights(self) -> Any:
        """The executor's weights, or None if they no longer exist."""
        return self._weights()

    @property
    def trains_here(self) -> bool:
        """Whether no other thread than this one called the executor last."""
        return self._training_thread in (None, threading.get_ident())

    def note_training(self) -> None:
        """Notes that this thread calls the executor."""
        self._training_thread = threading.get_ident()

    def count_change(self) -> None:
        """Counts a change of the host's or the executor's weights."""
        self.version += 1

    def sync(self) -> bool:
        """Brings the weights of this executor back if they are newer there; returns whether."""
        weights = self._weights()
        if weights is None or not weights.is_ahead or threading.get_ident() in self._quiet:
            return False
        with self.quiet():
            return weights.bring_home()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Keeps this thread from syncing."""
        thread = threading.get_ident()
        if thread in self._quiet:
            yield
            return
        self._quiet.add(thread)
        try:
            yield
        finally:
            self._quiet.discard(thread)


class _Owners:
    """Data of a synced tensor: its original class, and the links to its trainers."""

    def __init__(self, own_class: type[torch.Tensor], links: tuple[Link, ...]) -> None:
        self.own_class = own_class
        self.links = links

    def __deepcopy__(self, _: Any) -> None:
        """Returns None, because no executor trains a copy."""

    def __reduce__(self) -> Any:
        return (type(None), ())


class Synced:
    """Mixin of parameters and buffers: every read first copies the weights back."""

    @uncompiled
    def __getattribute__(self, name: str) -> Any:
        if name not in _OUR_NAMES:
            sync(self)
        # `super` would fail if another thread restores the tensor's original class meanwhile.
        return torch.Tensor.__getattribute__(self, name)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Syncs, then runs `func` as if its arguments were plain tensors."""
        for value in pytree.tree_iter((args, kwargs)):
            if isinstance(value, Synced):
                sync(value)
        with HOST_TENSORS, DisableTorchFunctionSubclass():
            if func == _READ_DATA:
                # Unlike PyTorch's `data`, this tensor shares the version counter with the original.
                return args[0].detach().as_subclass(torch.Tensor)
            return func(*args, **(kwargs or {}))

    def __repr__(self, *, tensor_contents: str | None = None) -> str:
        return repr(_without_sync(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _without_sync(self).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            # `copy.deepcopy` keeps the plain tensor alive, because the memo holds its id.
            memo[id(self)] = copy.deepcopy(_without_sync(self), memo)
        return memo[id(self)]

    def __copy__(self) -> Any:
        """Returns a copy whose reads sync, because it shares the memory with the original."""
        duplicate = copy.copy(_without_sync(self))
        for link in _links_of_tensor(self):
            put_on_tensor(duplicate, link)
        return duplicate


class SyncedParameter(Synced, torch.nn.Parameter):  # type: ignore[misc]
    """A parameter whose newest value may be on a device."""


class SyncedBuffer(Synced, torch.Tensor):  # type: ignore[misc]
    """A buffer whose newest value may be on a device."""


def put_on_tensor(tensor: torch.Tensor, link: Link) -> None:
    """Adds `link` to `tensor`, and removes links of executors that no longer exist."""
    _note_change()
    links = tuple(other for other in _links_of_tensor(tensor) if _is_other(other, link))
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    vars(tensor)[_OWNERS] = _Owners(own_class(tensor), (*links, link))
    tensor.__class__ = SyncedParameter if is_parameter else SyncedBuffer


def take_off_tensor(tensor: torch.Tensor, link: Link) -> None:
    """Undoes `put_on_tensor`; without other trainers, the tensor gets its own class again."""
    _note_change()
    before = _links_of_tensor(tensor)
    if link not in before:
        return
    links = tuple(other for other in before if _is_other(other, link))
    own = own_class(tensor)
    if links:
        vars(tensor)[_OWNERS] = _Owners(own, links)
    else:
        vars(tensor).pop(_OWNERS, None)
        tensor.__class__ = own


def sync(value: object) -> None:
    """Copies the values of a tensor back if one of its executors has newer ones."""
    owners = object.__getattribute__(value, "__dict__").get(_OWNERS)
    if owners is not None:
        for link in owners.links:
            link.sync()


@contextmanager
def settled(model: torch.nn.Module) -> Iterator[None]:
    """Brings the weights of a model back, and keeps them as they are on the host meanwhile.

    So the values that are read inside are of one step, while other threads may train the model.
    """
    links = links_of(model)
    for link in links:
        link.sync()
    with HOST_TENSORS, ExitStack() as stack:
        for link in links:
            stack.enter_context(link.quiet())
        yield


def tensors_of(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yields all parameters and buffers, once for each place."""
    for module in model.modules():
        for values in (module._parameters, module._buffers):
            yield from (value for value in values.values() if value is not None)


def links_of(model: torch.nn.Module) -> list[Link]:
    """Returns all links of the parameters and buffers of `model`, each once."""
    return list(
        dict.fromkeys(link for tensor in tensors_of(model) for link in _links_of_tensor(tensor))
    )


def num_changes() -> int:
    """Returns a number that changes whenever the result of `links_of` may change."""
    return _num_changes


def _note_change() -> None:
    global _num_changes
    _num_changes += 1


def own_class(tensor: torch.Tensor) -> type[torch.Tensor]:
    """Returns the class of a tensor without trainers."""
    if not isinstance(tensor, Synced):
        return type(tensor)
    own: type[torch.Tensor] = vars(tensor)[_OWNERS].own_class
    return own


def plain(value: torch.Tensor) -> torch.Tensor:
    """Returns the tensor behind `value` in a plain class, sharing its storage."""
    with DisableTorchFunctionSubclass():
        data = value.detach().as_subclass(torch.Tensor)
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(data, requires_grad=value.requires_grad)
        return data


def memory_of(tensor: torch.Tensor) -> int:
    """Returns the address of a tensor's memory, which shallow copies share."""
    with DisableTorchFunctionSubclass():
        return torch.Tensor.untyped_storage(tensor).data_ptr()


def _without_sync(value: Any) -> torch.Tensor:
    """Returns `value` with its newest values as an unsynced tensor."""
    sync(value)
    tensor = plain(value)
    tensor.__class__ = own_class(value)
    with DisableTorchFunctionSubclass():
        tensor.requires_grad_(value.requires_grad)
    vars(tensor).update((k, v) for k, v in vars(value).items() if k not in _OUR_ATTRIBUTES)
    return tensor


def _links_of_tensor(tensor: Any) -> tuple[Link, ...]:
    if not isinstance(tensor, Synced):
        return ()
    links: tuple[Link, ...] = vars(tensor)[_OWNERS].links
    return links


def _is_other(link: Link, than: Link) -> bool:
    return link is not than and link.trainer is not None
