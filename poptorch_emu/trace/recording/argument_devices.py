"""Finds the device of an operation from its arguments: the CPU, or the IPU of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from poptorch_emu.torch_versions import FakeTensor


def is_host_only(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether an operation runs on the CPU during the trace."""
    device = kwargs.get("device")
    if device is not None and torch.device(device).type == "ipu":
        return False
    return not _concerns_device(args) and not _concerns_device(tuple(kwargs.values()))


def _concerns_device(value: Any) -> bool:
    """Returns whether a tensor or device among the arguments is not the CPU."""
    if isinstance(value, FakeTensor):
        return True
    if isinstance(value, (tuple, list)):
        return any(map(_concerns_device, value))
    if isinstance(value, torch.Tensor):
        return value.device.type != "cpu"
    return isinstance(value, torch.device) and value.type == "ipu"


def is_on_ipu(values: Any) -> bool:
    """Returns whether a tensor among the values is on the IPU."""
    if isinstance(values, torch.Tensor):
        return _device_of(values).type == "ipu"
    return isinstance(values, (tuple, list)) and any(map(is_on_ipu, values))


def is_fake_on_host(values: Any) -> bool:
    """Returns whether a fake tensor among the values is on the CPU."""
    if isinstance(values, (tuple, list)):
        return any(map(is_fake_on_host, values))
    return isinstance(values, FakeTensor) and values.fake_device.type == "cpu"


def _device_of(tensor: torch.Tensor) -> torch.device:
    """Returns the device of a tensor; for a fake tensor, without a slow dispatch."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
