"""Base class of `poptorch.optim`: constant and variable attributes, and the device's state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from inspect import unwrap
from typing import Any

import torch

from poptorch_emu.errors import require
from poptorch_emu.near_names import did_you_mean

_ACCUM_TYPES = (torch.float32, torch.float16)
_TYPE_NAMES = (
    "accum_type",
    "velocity_accum_type",
    "first_order_momentum_accum_type",
    "second_order_momentum_accum_type",
)
_STATE_KEYS = ("ipu_state", "ipu_param")


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method without PyTorch's decorator, which loads its compiler: 75 MiB, a second."""
    plain: Callable[..., Any] = unwrap(method)
    return plain


class VariableAttributes:
    """Stores which hyper-parameters may change after compilation (exact)."""

    def __init__(
        self, variable_attributes: Iterable[str], allowed_attributes: Iterable[str]
    ) -> None:
        """Makes `variable_attributes` variable and all other allowed attributes constant."""
        self._variable = set(variable_attributes)
        self._allowed = list(allowed_attributes)

    def __repr__(self) -> str:
        """Returns the names of the hyper-parameters that may change."""
        return f"<VariableAttributes: {', '.join(sorted(self._variable)) or 'all are constant'}>"

    def isConstant(self, attr: str) -> bool:
        """Returns whether `attr` is a constant of the compiled program."""
        return attr not in self._variable

    def markAsConstant(self, attr: str) -> None:
        """Makes `attr` a constant of the next compilation.

        Raises:
            AssertionError: `attr` is unknown.
        """
        self._check(attr)
        self._variable.discard(attr)

    def markAsVariable(self, attr: str) -> None:
        """Allows `attr` to change after the next compilation.

        Raises:
            AssertionError: `attr` is unknown.
        """
        self._check(attr)
        self._variable.add(attr)

    def _check(self, attr: str) -> None:
        if attr not in self._allowed:
            raise AssertionError(
                f"Unknown attribute {attr}, allowed values: {self._allowed}"
                f"{did_you_mean(attr, self._allowed)}"
            )


class Optimizer(torch.optim.Optimizer):
    """Base class of optimisers that keep a state on the device (exact).

    Attributes:
        variable_attrs: record of the attributes that may change after compilation.
        loss_scaling: factor of the loss before back-propagation.
        ipu_state_is_dirty: whether the device's state is newer than the cached one.
        host_state_is_dirty: whether a loaded state was not sent to the device yet.
    """

    variable_attrs: VariableAttributes
    loss_scaling: float
    max_grad_norm: float
    _state_dict: dict[str, Any]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters with their own hyper-parameters, as PyTorch's optimisers do (exact).

        Raises:
            TypeError: the parameters are not tensors.
            ValueError: a parameter is in two groups, or a value is missing.
        """
        _plain(torch.optim.Optimizer.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients of all parameters, as PyTorch's optimisers do (exact)."""
        _plain(torch.optim.Optimizer.zero_grad)(self, set_to_none)

    def _add_device_part(self, given: Iterable[str], arguments: Mapping[str, Any]) -> None:
        """Sets the attributes that PyTorch's optimisers lack.

        Args:
            given: names of PyTorch's arguments that the user gave.
            arguments: all arguments of the constructor by name, also those of the device.
        """
        for name in filter(arguments.__contains__, _TYPE_NAMES):
            dtype = arguments[name]
            require(
                dtype is None or dtype in _ACCUM_TYPES,
                "Accumulation types must be either torch.float32 or torch.float16, but "
                f"{name} is {dtype}.",
            )
            setattr(self, name, dtype or torch.float32)
        if "max_grad_norm" in arguments:
            limit = arguments["max_grad_norm"]
            self.max_grad_norm = math.inf if limit is None else limit
        loss_scaling = arguments["loss_scaling"]
        self.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
        self.variable_attrs = VariableAttributes(
            given if loss_scaling is None else [*given, "loss_scaling"],
            [*self.defaults, "loss_scaling"],
        )
        self.ipu_state_is_dirty = False
        self.host_state_is_dirty = False
        self._state_dict = dict.fromkeys(_STATE_KEYS)

    def state_dict(self) -> dict[str, Any]:
        """Returns the device's state ("ipu_state", "ipu_param") and PyTorch's own (exact)."""
        return {**self.get_state_dict(), **_plain(torch.optim.Optimizer.state_dict)(self)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Sets hyper-parameters now, and the device's state at the next upload (exact).

        Raises:
            RuntimeError: the state is empty or lacks the device's part.
        """
        if "param_groups" in state_dict:
            _plain(torch.optim.Optimizer.load_state_dict)(self, state_dict)
        self.set_state_dict(state_dict)

    def get_state_dict(self) -> dict[str, Any]:
        """Returns the cached state of the device (exact)."""
        return dict(self._state_dict)

    def set_state_dict(self, state: dict[str, Any]) -> None:
        """Stores a state of the device, which the next upload sends (exact).

        Raises:
            RuntimeError: the state is empty or lacks the device's part.
        """
        if not state:
            raise RuntimeError("Cannot load optimizer state dictionary because it is empty.")
        missing = [key for key in _STATE_KEYS if key not in state]
        if missing:
            raise RuntimeError(
                "Only IPU optimizer states can be loaded onto the IPU. Expected the keys "
                f"{missing} beside {sorted(map(str, state))}: load a result of state_dict() of an "
                "optimizer of poptorch.optim."
            )
        self._state_dict = {key: state[key] for key in _STATE_KEYS}
        self.ipu_state_is_dirty = False
        self.host_state_is_dirty = True

    def has_state(self) -> bool:
        """Returns whether the object has a state of the device (exact)."""
        return all(value is not None for value in self._state_dict.values())

    def __getstate__(self) -> dict[str, Any]:
        """Returns all attributes with the newest state of the device, for copy and pickle.

        Attributes that other objects added are left out: a scheduler's `step`, an executor's
        `state_dict`, hooks.
        """
        current = self.state_dict()
        public = {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_") and not callable(value)
        }
        return {**public, "_state_dict": {key: current[key] for key in _STATE_KEYS}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy; PyTorch also calls this with its own part of a loaded state."""
        super().__setstate__(state)
        if "_state_dict" in state:
            self.ipu_state_is_dirty = False
            self.host_state_is_dirty = self.has_state()


def cache_device_state(
    optimizer: Optimizer, states: dict[str, torch.Tensor], parameters: dict[str, torch.Tensor]
) -> None:
    """Makes `optimizer` show a state that was just read from the device."""
    optimizer._state_dict = dict(zip(_STATE_KEYS, (states, parameters), strict=True))
    optimizer.ipu_state_is_dirty = False


def given_arguments(arguments: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Returns the hyper-parameters among a constructor's arguments that are not `None`.

    Args:
        arguments: `locals()` of the constructor.
        names: names of hyper-parameters; all `torch_arguments` are hyper-parameters, too.

    Raises:
        AssertionError: `betas` is not a tuple of two; like PopTorch, it must not be a list.
    """
    betas = arguments.get("betas")
    require(
        betas is None or (isinstance(betas, tuple) and len(betas) == 2),
        f"Expected a pair for betas but got {betas} instead: write betas=(0.9, 0.999).",
    )
    known = {name: arguments[name] for name in names if name in arguments and name != "params"}
    known |= arguments.get("torch_arguments", {})
    return {name: value for name, value in known.items() if value is not None}
