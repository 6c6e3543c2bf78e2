"""Handles functions of `torch` before they become ATen operations.

Factories (`torch.zeros`, ...) without a device make tensors on the IPU, which is logged once, and
calls of loss functions are marked. In a region of `autocast`, arguments are cast first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from poptorch_emu.log import logger
from poptorch_emu.torch_versions import (
    FakeTensor,
    HigherOrderOperator,
    disable_current_modes,
    pytree,
)
from poptorch_emu.trace.operators import higher_order, library_operators
from poptorch_emu.trace.operators.loss_functions import (
    LOSS_FUNCTIONS,
    LOSS_OPERATORS,
    call_loss,
    call_loss_operator,
)
from poptorch_emu.trace.operators.static_forms import STATIC_FORMS
from poptorch_emu.trace.pytorch.autocast import Autocast
from poptorch_emu.trace.recording import host_moves
from poptorch_emu.trace.recording.recorder import IPU

# Source: PopTorch's list of factories whose result goes to the IPU.
_FACTORIES = frozenset(
    {
        torch.empty,
        torch.empty_permuted,
        torch.empty_strided,
        torch.full,
        torch.ones,
        torch.zeros,
        torch.arange,
        torch.range,
        torch.linspace,
        torch.logspace,
        torch.rand,
        torch.randn,
        torch.randint,
        torch.randperm,
        torch.eye,
        torch.tril_indices,
        torch.triu_indices,
        torch.scalar_tensor,
        torch.bartlett_window,
        torch.blackman_window,
        torch.hamming_window,
        torch.hann_window,
        torch.kaiser_window,
        torch.fft.fftfreq,
        torch.fft.rfftfreq,
    }
)


# Factories that make a tensor on the IPU even if their argument is on the CPU.
_LIKE = frozenset({torch.full_like, torch.zeros_like})


class FunctionMode(TorchFunctionMode):
    """Mode that is active while the user's `forward` runs."""

    def __init__(self, autocast: Autocast | None = None) -> None:
        super().__init__()
        self._autocast = autocast
        self._told_of_device: set[str] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs `func`, on the IPU if it is a factory, and marks its result if that is a loss."""
        kwargs = dict(kwargs or {})
        if self._autocast is not None:
            args, kwargs = self._autocast.cast(func, args, kwargs)
        if _makes_tensor(func, args, kwargs) and kwargs.get("device") is None:
            kwargs["device"] = self._ipu_for(func.__name__)
        if func is torch.tensor and _is_ipu(kwargs.get("device") or self._ipu_for("tensor")):
            return _constant(*args, **kwargs)
        if func in LOSS_FUNCTIONS:
            return call_loss(func, args, kwargs)
        if func in LOSS_OPERATORS:
            return call_loss_operator(func, args, kwargs)
        if library_operators.takes(func, args, kwargs):
            return library_operators.call(func, args, kwargs)
        if isinstance(func, HigherOrderOperator):
            with self:  # The operator calls the user's functions.
                return higher_order.call(func, args, kwargs)
        return host_moves.call(STATIC_FORMS.get(func, func), args, kwargs)

    def _ipu_for(self, name: str) -> torch.device:
        """Returns the device of factories without one; logs each function once."""
        if name not in self._told_of_device:
            logger.info("No device set in torch.%s(): forcing to IPU", name)
        self._told_of_device.add(name)
        return IPU


def _makes_tensor(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Returns whether `func` is a factory whose result would be on the CPU.

    With `out` a factory makes no tensor. `torch.normal` with tensor arguments uses their device.
    """
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if kwargs.get("out") is not None:
        return False
    if func in _LIKE:
        return not any(value.device.type == "ipu" for value in given)
    if func is torch.normal:
        return not given
    return func in _FACTORIES


def _is_ipu(device: Any) -> bool:
    return torch.device(device).type == IPU.type


def _constant(data: Any, **kwargs: Any) -> torch.Tensor:
    if isinstance(data, FakeTensor):
        return data.detach().clone().to(kwargs.get("dtype", data.dtype))
    # Numbers on the device are read if their values are known.
    data = pytree.tree_map_only(FakeTensor, torch.Tensor.item, data)
    with disable_current_modes():
        value = torch.tensor(data, **{key: v for key, v in kwargs.items() if key != "device"})
    return value.to(IPU)
