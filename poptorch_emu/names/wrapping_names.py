"""Names that programs use from `poptorch._impl`: unwrapping a model for a time, and the trace."""

from __future__ import annotations

import weakref

import torch

from poptorch_emu.executor import wrapping
from poptorch_emu.executor.synced_tensors import Link
from poptorch_emu.trace.places.blocks import is_tracing

_taken_off: weakref.WeakKeyDictionary[torch.nn.Module, tuple[Link, type[torch.nn.Module]]] = (
    weakref.WeakKeyDictionary()
)


def isDispatchTracing() -> bool:
    """Returns whether `forward` is being traced (exact)."""
    return is_tracing()


def unwrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Makes a model that is being trained a plain one, with its newest weights (exact).

    Until `rewrapModelIfNecessary` is called, reading a weight does not fetch it from the device.
    """
    link = wrapping.link_of(model)
    if link is not None:
        link.sync()
        _taken_off[model] = (link, type(model))
        wrapping.take_off(model, link)


def rewrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Reverts `unwrapModelIfNecessary`; does nothing if it was not called (exact)."""
    taken = _taken_off.pop(model, None)
    if taken is not None:
        wrapping.put_on(model, *taken)
