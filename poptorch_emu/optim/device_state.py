"""The connection between an optimiser object and the device that does its arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from poptorch_emu.log import logger
from poptorch_emu.optim.base import Optimizer
from poptorch_emu.optim.compatible import check_compatible
from poptorch_emu.optim.convert import optimizer_config
from poptorch_emu.options import Options
from poptorch_emu.update.config import OptimizerConfig


class DeviceSession(Protocol):
    """What is needed of a session on the device."""

    def set_hyper_parameters(self, optimizer: OptimizerConfig) -> None:
        """Sends hyper-parameters."""

    def read_states(self) -> dict[str, torch.Tensor]:
        """Returns a copy of the optimiser's state."""

    def write_states(self, states: Mapping[str, torch.Tensor]) -> list[str]:
        """Sends the optimiser's state; returns the names that were missing."""


class OptimizerLink:
    """Keeps one executor's optimiser and its state in step with the device."""

    def __init__(self, optimizer: torch.optim.Optimizer | None, options: Options) -> None:
        """Takes the optimiser given to `trainingModel`."""
        assert optimizer is not None, "a training model has an optimiser"
        self._optimizer = optimizer
        self._options = options
        self._parameters: Mapping[str, torch.nn.Parameter] = {}
        self._config: OptimizerConfig | None = None
        self._is_dirty = False
        self._state_is_stale = False
        self._session: DeviceSession | None = None
        self._instrument(optimizer)

    def config(self, parameters: Mapping[str, torch.nn.Parameter]) -> OptimizerConfig:
        """Converts the optimiser for a compilation."""
        self._parameters = parameters
        self._config = self._convert(self._optimizer)
        return self._config

    def send(self, session: DeviceSession) -> None:
        """Sends hyper-parameters, and a state if there is one, to a device just attached."""
        assert self._config is not None, "a device is attached after a compilation"
        self._session = session
        session.set_hyper_parameters(self._config)
        self._is_dirty = False
        if isinstance(self._optimizer, Optimizer) and self._optimizer.has_state():
            missing = session.write_states(self._optimizer.get_state_dict()["ipu_state"])
            for name in missing:
                logger.warning("writeOptimizerState: ignoring missing state %s", name)
            self._optimizer.host_state_is_dirty = False

    def send_if_dirty(self, session: DeviceSession) -> None:
        """Sends what `setOptimizer` changed since the last call, and notes that a call follows."""
        if self._is_dirty:
            self.send(session)
        self._state_is_stale = True
        if isinstance(self._optimizer, Optimizer):
            self._optimizer.ipu_state_is_dirty = True

    def receive(self, session: DeviceSession) -> None:
        """Brings the state back before the device is released."""
        self._read(session)
        self._session = None

    def replace(self, optimizer: torch.optim.Optimizer, session: DeviceSession | None) -> None:
        """Goes on with `optimizer`, which may be the same object with other values."""
        new = self._convert(optimizer) if self._config is not None else None
        if new is not None and self._config is not None:
            check_compatible(self._config, new)
        if optimizer is not self._optimizer:
            if session is not None:
                self._read(session)
            self._optimizer.__dict__.pop("state_dict", None)
            self._optimizer = optimizer
            self._instrument(optimizer)
        if new is not None:
            self._config = new
            self._is_dirty = True
            if session is not None:
                self._send_values(session)

    def _send_values(self, session: DeviceSession) -> None:
        assert self._config is not None
        optimizer = self._optimizer
        if isinstance(optimizer, Optimizer) and optimizer.host_state_is_dirty:
            self.send(session)
        else:
            session.set_hyper_parameters(self._config)
        self._is_dirty = False

    def _convert(self, optimizer: torch.optim.Optimizer) -> OptimizerConfig:
        settings = self._options._Popart.options
        automatic = bool(settings.get("automaticLossScalingSettings.enabled", False))
        return optimizer_config(optimizer, self._parameters, is_automatic_loss_scaling=automatic)

    def _instrument(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes `state_dict()` of one of our optimisers show the state of the device."""
        if not isinstance(optimizer, Optimizer):
            return

        def state_dict() -> dict[str, Any]:
            if self._session is not None and self._state_is_stale:
                self._read(self._session)
            return Optimizer.state_dict(optimizer)

        optimizer.state_dict = state_dict  # type: ignore[method-assign]

    def _read(self, session: DeviceSession) -> None:
        optimizer = self._optimizer
        if isinstance(optimizer, Optimizer) and self._config is not None:
            optimizer._state_dict = {
                "ipu_state": session.read_states(),
                "ipu_param": _parameter_tensors(self._config),
            }
            optimizer.ipu_state_is_dirty = False
        self._state_is_stale = False


def _parameter_tensors(config: OptimizerConfig) -> dict[str, torch.Tensor]:
    """Returns the variable hyper-parameters as 0-d tensors, under names like PopART's."""
    result = {}
    for index, group in enumerate(config.groups):
        suffix = "___default" if index == 0 else f"___specific___{index - 1}"
        for name, hyper in group.hypers:
            if not hyper.is_constant:
                result[f"{name}{suffix}"] = torch.tensor(hyper.value)
    if not config.loss_scaling.is_constant:
        result["lossScaling_FLOAT"] = torch.tensor(config.loss_scaling.value)
    return result
