"""Handles moves between host and device inside of `forward`; no tensor leaves the device.

PopTorch rejects moves in both directions. Here a tensor that would move to the CPU stays on the
IPU, with the same numbers, and a tensor of the host beside tensors of the device is a constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from poptorch_emu.errors import Error
from poptorch_emu.torch_versions import FakeTensor, pytree
from poptorch_emu.trace.recording import host_writes
from poptorch_emu.trace.recording.left_tensors import is_left_by_trace
from poptorch_emu.trace.refusals import refusal
from poptorch_emu.trace.refusals.leniency import tolerate

aten = torch.ops.aten
_IPU = torch.device("ipu:0")
_STAYS = "Here the tensor stays on the IPU."
_CONSTANT = "Here it is uploaded as a constant, with the values it has now, and is not trained."

# Pattern for messages about devices, because PyTorch's functions have no common text.
_ABOUT_DEVICES = re.compile(r"\bdevices?\b|DeviceType", re.IGNORECASE)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Returns `tensor.to(...)`, without a move to the CPU."""
    if tensor.device.type != "ipu":
        return tensor.to(*args, **kwargs)
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, torch.Tensor) and _is_cpu(other.device):
        kwargs.pop("other", None)
        args, kwargs = (other.device, other.dtype, *args[1:]), kwargs
    if any(map(_is_cpu, (*args, kwargs.get("device")))):
        tolerate("move", refusal.moves_to_cpu(tensor), _STAYS)
        args = tuple(tensor.device if _is_cpu(value) else value for value in args)
        kwargs = {k: tensor.device if _is_cpu(value) else value for k, value in kwargs.items()}
    return tensor.to(*args, **kwargs)


def cpu(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Returns `tensor`, without a move to the CPU if it is on the IPU."""
    if tensor.device.type != "ipu":
        return tensor.cpu(*args, **kwargs)
    tolerate("move", refusal.moves_to_cpu(tensor), _STAYS)
    return tensor


def staying(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Returns the arguments of an operation, for a copy without a move to the CPU."""
    if func is aten._to_copy.default and _is_cpu(kwargs.get("device")):
        if isinstance(args[0], FakeTensor) and args[0].device.type == "ipu":
            tolerate("move", refusal.moves_to_cpu(args[0]), _STAYS)
            return args, {**kwargs, "device": _IPU}
    return args, dict(kwargs)


def call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function of PyTorch whose operands may be on two devices.

    The recorder uploads the operands of single operations. A function of several operations may
    compare the devices of its arguments before the first one, so its operands are uploaded here.

    Raises:
        Error: an operand on the host would be trained.
    """
    try:
        return func(*args, **kwargs)
    except (Error, RuntimeError) as failure:
        given = (args, dict(kwargs))
        if not _are_on_two_devices(given) or not _is_about_devices(failure, given):
            raise
    _check_not_written(func, args, kwargs)
    args, kwargs = with_constants(func, args, kwargs, lambda value: value.to(_IPU))
    return func(*args, **kwargs)


def _check_not_written(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raises for a function that would write to a tensor of the host, by `out=` or in place."""
    name = getattr(func, "__name__", "")
    is_in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith(
        ("__i", "__setitem__")
    )
    written = [*pytree.tree_leaves(kwargs.get("out")), *(args[:1] if is_in_place else ())]
    for value in written:
        if isinstance(value, torch.Tensor) and value.device.type == "cpu":
            raise host_writes.refusal(value)


def _is_about_devices(failure: Error | RuntimeError, given: Any) -> bool:
    """Returns whether a function failed because its operands are on two devices."""
    if isinstance(failure, Error):
        return host_writes.is_of_temporary(failure, given)
    return bool(_ABOUT_DEVICES.search(str(failure)))


def _are_on_two_devices(values: Any) -> bool:
    leaves = pytree.tree_leaves(values)
    return len({each.device.type for each in leaves if isinstance(each, torch.Tensor)}) > 1


def with_constants(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    upload: Callable[[torch.Tensor], torch.Tensor],
) -> Arguments:
    """Returns the arguments of an operation, with tensors of the host uploaded.

    Raises:
        Error: a tensor of the host would be changed or trained, or has no value in a trace.
    """
    new_args, new_kwargs = pytree.tree_map_only(
        torch.Tensor, lambda value: uploaded(value, upload), (args, dict(kwargs))
    )
    return new_args, new_kwargs


def uploaded(
    value: torch.Tensor,
    upload: Callable[[torch.Tensor], torch.Tensor] = lambda value: value.to(_IPU),
) -> torch.Tensor:
    """Returns a tensor of the host after `upload`, or another tensor unchanged.

    Raises:
        Error: the tensor would be trained, or has no value in a trace.
    """
    if value.device.type == "ipu":
        return value
    error = refusal.foreign_tensor(value)
    if isinstance(value, FakeTensor) or value.requires_grad:
        raise error
    if not is_left_by_trace(value):
        tolerate("constant", error, _CONSTANT)
    return upload(value)


def _is_cpu(value: Any) -> bool:
    """Returns whether an argument names the CPU."""
    if isinstance(value, str):
        value = torch.device(value)
    return isinstance(value, torch.device) and value.type == "cpu"
