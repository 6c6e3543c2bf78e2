"""Attributes of a wrapped model that come from the user's module."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.troubleshooting import Topic

_TO_A_DEVICE = {"cuda", "xpu", "mps", "mtia"}
_ALLOWED = {"cpu", "ipu", "meta"}


def attribute_of(model: torch.nn.Module, name: str, wrapper: type) -> Any:
    """Returns an attribute of the user's module.

    Raises:
        AttributeError: neither has it; the text offers the nearest name of module and wrapper.
    """
    try:
        value = getattr(model, name)
    except AttributeError as fault:
        known = (each for each in (*dir(wrapper), *dir(model)) if not each.startswith("_"))
        fault.args = (f"{fault}.{did_you_mean(name, known)}",)
        raise
    is_method = getattr(value, "__self__", None) is model
    return _on_host(value) if is_method and name in {"to", *_TO_A_DEVICE} else value


def _on_host(move: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that moves a module, and raises for devices other than host and IPU."""

    @wraps(move)
    def moved(*args: Any, **kwargs: Any) -> Any:
        asked = move.__name__ if move.__name__ in _TO_A_DEVICE else _device(args, kwargs)
        if asked not in _ALLOWED:
            raise make_error(
                f"A wrapped model runs on the IPU, but .{move.__name__}(...) was to move it to "
                f"{asked!r}. Take the call out: the wrapper brings weights and inputs to the "
                f"device by itself; {Topic.OTHER_DEVICE}"
            )
        return move(*args, **kwargs)

    return moved


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Returns the kind of device in the arguments of `Module.to`; "cpu" if they name none."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (str, torch.device)):
            return torch.device(value).type
    return "cpu"
