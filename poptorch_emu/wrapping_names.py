"""What programs reach for in `poptorch._impl`: taking a training wrapper off for a moment."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from poptorch_emu import wrapping

_taken_off: weakref.WeakKeyDictionary[
    torch.nn.Module, tuple[Callable[[], None], type[torch.nn.Module]]
] = weakref.WeakKeyDictionary()


def unwrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Makes a model that is being trained a plain one, with its newest weights (exact).

    Until `rewrapModelIfNecessary`, reading a weight does not bring it back from the device.
    """
    if wrapping.is_wrapped(model):
        link = wrapping.sync_of(model)
        link()
        _taken_off[model] = (link, type(model))
        wrapping.unwrap(model)


def rewrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Takes back `unwrapModelIfNecessary`; without one before, does nothing (exact)."""
    taken = _taken_off.pop(model, None)
    if taken is not None:
        wrapping.put_on(model, *taken)
