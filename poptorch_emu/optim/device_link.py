"""Link between an optimiser object and the device that runs its arithmetic."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from poptorch_emu.errors import Error
from poptorch_emu.log import compiler_logger, logger
from poptorch_emu.optim.automatic_loss_scale import loss_scale_rule
from poptorch_emu.optim.config_checks import check_compatible
from poptorch_emu.optim.optimizer_base import Optimizer, cache_device_state
from poptorch_emu.optim.optimizer_conversion import (
    check_reduction,
    needs_running_mean,
    optimizer_config,
    optimizer_kind,
)
from poptorch_emu.optim.optimizer_warnings import AttributeTracker, warn_of_steps, warn_of_subclass
from poptorch_emu.optim.parameter_tensors import parameter_tensors
from poptorch_emu.optim.sent_values import SentValues
from poptorch_emu.optim.torch_state import SyncedState, from_torch, to_torch
from poptorch_emu.options.optimizer_settings import OptimizerSettings
from poptorch_emu.trace.capture.initial_gradient import ScalingLimits
from poptorch_emu.update.formulas.loss_scale import KEPT_VARIABLES
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig, OptimizerKind


class DeviceSession(Protocol):
    """Methods that the link needs from a session on the device."""

    @property
    def num_windows(self) -> int:
        """Number of updates in a call."""

    def set_hyper_parameters(self, optimizer: OptimizerConfig) -> None:
        """Sends the variable hyper-parameters."""

    def read_states(self) -> dict[str, torch.Tensor]:
        """Returns a copy of the optimiser's state."""

    def write_states(self, states: Mapping[str, torch.Tensor]) -> list[str]:
        """Sends the optimiser's state; returns the names that were missing."""


class OptimizerLink:
    """Synchronises one executor's optimiser and its state with the device.

    While a session is attached, the device has the newest state. The host's copy is refreshed
    when it is read, and before the session ends. An optimiser of `poptorch.optim` shows the state
    in `state_dict()`; an optimiser of PyTorch in `state`, the source of its `state_dict()`.
    """

    # Limits of the loss scaling of the compiled program.
    limits: ScalingLimits | None = None
    # Number of updates that the state of a PyTorch optimiser does not include yet.
    _num_unread = 0

    def __init__(
        self, optimizer: torch.optim.Optimizer | None, settings: OptimizerSettings
    ) -> None:
        """Stores and checks the optimiser that was passed to `trainingModel`.

        Args:
            optimizer: optimiser of `poptorch.optim`, or of PyTorch with a counterpart there.
            settings: the part of the executor's options that concerns the optimiser.
        """
        assert optimizer is not None, "a training model has an optimiser"
        self._optimizer = optimizer
        self._settings = settings
        self._is_running_mean = False
        self._tracker: AttributeTracker | None = None
        self._parameters: dict[str, torch.nn.Parameter] | None = None
        self._config: OptimizerConfig | None = None
        self._states: dict[str, torch.Tensor] | None = None
        self._session: DeviceSession | None = None
        self._sent = SentValues()
        self._synced: SyncedState | None = None  # The state of an optimiser of PyTorch.
        self._convert_early(optimizer)
        warn_of_subclass(optimizer)
        self._instrument(optimizer)

    @property
    def needs_running_mean(self) -> bool:
        """Whether gradients must be averaged during accumulation for this optimiser."""
        return needs_running_mean(self._optimizer)

    def config(
        self, parameters: Mapping[str, torch.nn.Parameter], *, is_running_mean: bool
    ) -> OptimizerConfig:
        """Converts the optimiser for a compilation.

        Args:
            parameters: all parameters of the model by name.
            is_running_mean: whether the program averages gradients during accumulation.
        """
        self._parameters, self._config = dict(parameters), None
        self._is_running_mean = is_running_mean
        self._config = self._convert(self._optimizer)
        return self._config

    def send(self, session: DeviceSession) -> None:
        """Sends hyper-parameters, and the state if there is one, to a newly attached device."""
        self._send_values(session)
        self._send_states(session)

    def send_if_dirty(self, session: DeviceSession) -> None:
        """Sends values of `load_state_dict` that are new, and records that a step follows.

        Values that were changed in another way are sent by `setOptimizer`.
        """
        optimizer = self._optimizer
        if self._is_loaded:
            self.replace(optimizer, session)
        if isinstance(optimizer, Optimizer):
            optimizer.ipu_state_is_dirty = True
        else:
            self._num_unread += session.num_windows
        self._session = session
        # PyTorch's schedulers check that a step came before theirs; the device has run it.
        optimizer._opt_called = True  # type: ignore[attr-defined]

    def changed_values(self) -> list[str]:
        """Returns the names of values that changed since the device received them."""
        return self._sent.changed(self._optimizer)

    def receive(self, session: DeviceSession) -> None:
        """Reads the state before the host overwrites or releases the device."""
        optimizer = self._optimizer
        if self._num_unread or (isinstance(optimizer, Optimizer) and optimizer.ipu_state_is_dirty):
            self._read(session)
        self._session = None

    def replace(self, optimizer: torch.optim.Optimizer, session: DeviceSession | None) -> None:
        """Continues with `optimizer`, which may be the same object with other values.

        Args:
            optimizer: new optimiser, which must match the program if there is one.
            session: attached device, which receives the values now; `None` to send them later.
        """
        if self._config is None:
            self._convert_early(optimizer)
        else:
            config = self._convert(optimizer)
            check_compatible(self._config, config)
            if self.limits is not None and config.loss_scaling != self._config.loss_scaling:
                self.limits.check(config.loss_scaling.value)
            self._config = config
        warn_of_subclass(optimizer)
        if optimizer is not self._optimizer:
            self._hand_over(optimizer, session)
        if session is not None:
            self._send_values(session)
            if self._is_loaded:
                self._send_states(session)

    def forget(self) -> None:
        """Drops the compiled configuration, so that the next compilation takes any optimiser."""
        self._config = None
        self.limits = None
        self._parameters = None
        self._session = None
        self._tracker = None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser object that is in use."""
        return self._optimizer

    def saved_state(self, session: DeviceSession | None) -> dict[str, Any] | None:
        """Returns the newest state for a file; `None` if no device ever created one."""
        if session is not None:
            self._read(session)
        if self._states is None:
            return None
        return {"ipu_state": self._states, "ipu_param": self._tensors()}

    def take_state(self, state: dict[str, Any]) -> None:
        """Stores a result of `saved_state`, which is sent to the next device that is attached."""
        self._states = state["ipu_state"]
        if isinstance(self._optimizer, Optimizer):
            self._optimizer.set_state_dict(state)

    def _hand_over(self, optimizer: torch.optim.Optimizer, session: DeviceSession | None) -> None:
        """Leaves the last state with the old optimiser; a state of the new one will be sent."""
        if session is not None:
            self._read(session)
        elif self._config is None:
            self._states = None
        vars(self._optimizer).pop("state_dict", None)
        if self._synced is not None:
            self._synced.leave_device()
            self._synced = None
        self._stop_warning()
        self._optimizer = optimizer
        self._instrument(optimizer)
        if isinstance(optimizer, Optimizer):
            optimizer.host_state_is_dirty = optimizer.has_state()
            optimizer.ipu_state_is_dirty = session is not None
        elif self._config is not None and not optimizer.state:
            self._follow_device(optimizer, to_torch(*self._names(), self._states or {}))

    def _send_values(self, session: DeviceSession) -> None:
        assert self._config is not None, "a device is attached after a compilation"
        self._session = session
        session.set_hyper_parameters(self._config)
        self._sent.note(self._optimizer)

    def _send_states(self, session: DeviceSession) -> None:
        optimizer = self._optimizer
        states = self._states
        if isinstance(optimizer, Optimizer):
            if optimizer.has_state():
                cached = optimizer.get_state_dict()
                states = {**self._loss_scale(), **cached["ipu_state"]}
                self._report_missing("parameter", set(self._tensors()) - set(cached["ipu_param"]))
            optimizer.host_state_is_dirty = False
            optimizer.ipu_state_is_dirty = True
        elif self._is_loaded:
            states = self._take_loaded(session)
        if states is not None:
            missing = set(session.write_states(states)) - KEPT_VARIABLES
            self._report_missing("state", missing)

    @property
    def _is_loaded(self) -> bool:
        """Whether the host has a state that was not sent to the device."""
        if isinstance(self._optimizer, Optimizer):
            return self._optimizer.host_state_is_dirty
        state = self._optimizer.state
        if not isinstance(state, SyncedState) or state is not self._synced:
            return True
        return not self._num_unread and state.is_edited

    def _take_loaded(self, session: DeviceSession) -> dict[str, torch.Tensor] | None:
        """Returns the host's state in the device's form; `None` if the host has no state."""
        optimizer, was_known = self._optimizer, self._synced is not None
        if not optimizer.state and not was_known:
            self._follow_device(optimizer, to_torch(*self._names(), self._states or {}))
            return self._states
        present = session.read_states()
        if self._num_unread:
            self._states = present
        self._states = {**self._loss_scale(), **from_torch(*self._names(), present)}
        self._follow_device(optimizer, dict(optimizer.state.items()))
        return self._states

    def _follow_device(
        self, optimizer: torch.optim.Optimizer, values: Mapping[Any, dict[str, Any]]
    ) -> None:
        """Makes the state of a PyTorch optimiser follow the device, which has `values` now."""
        itself = weakref.ref(self)  # Weak, because the optimiser outlives its executors.

        def bring_home() -> None:
            link = itself()
            if link is not None and link._num_unread and link._session is not None:
                link._read(link._session)

        self._num_unread = 0
        self._synced = optimizer.state = SyncedState(values, bring_home)

    def _names(self) -> tuple[torch.optim.Optimizer, OptimizerKind, dict[str, torch.nn.Parameter]]:
        """Returns the arguments that convert between PyTorch's and the device's state names."""
        assert self._config is not None and self._parameters is not None, "nothing was compiled"
        return self._optimizer, self._config.kind, self._parameters

    def _loss_scale(self) -> dict[str, torch.Tensor]:
        """Returns the last automatic loss scale, because a state dict never contains it."""
        states = self._states or {}
        return {name: states[name] for name in KEPT_VARIABLES & states.keys()}

    def _report_missing(self, kind: str, names: set[str]) -> None:
        for name in sorted(names):
            compiler_logger.warning("writeOptimizerState: ignoring missing %s %s", kind, name)

    def _tensors(self) -> dict[str, torch.Tensor]:
        if self._config is None or self._parameters is None:
            return {}
        return parameter_tensors(self._config, self._parameters)

    def _convert_early(self, optimizer: torch.optim.Optimizer) -> None:
        """Checks `optimizer` before a compilation; refusals are raised by the compilation."""
        with contextlib.suppress(Error):
            self._convert(optimizer)

    def _convert(self, optimizer: torch.optim.Optimizer) -> OptimizerConfig:
        """Checks and converts `optimizer`; before a compilation only its parameters are known."""
        optimizer_kind(optimizer)  # First, so that an object that is no optimiser is reported.
        rule = loss_scale_rule(self._settings.backend)
        if rule is not None and isinstance(optimizer, Optimizer):
            optimizer.variable_attrs.markAsVariable("loss_scaling")
        config = optimizer_config(
            optimizer,
            _own_parameters(optimizer) if self._parameters is None else self._parameters,
            loss_scale_rule=rule,
        )
        if self._tracker is None:
            self._tracker = AttributeTracker(optimizer, is_relaxed=self._settings.is_relaxed)
        self._tracker.check(optimizer, config.kind)
        if self._config is not None:
            check_reduction(optimizer, is_running_mean=self._is_running_mean)
        return config

    def _instrument(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes `state_dict()` of an optimiser of `poptorch.optim` show the device's state."""
        itself = weakref.ref(self)  # Weak, because the optimiser outlives its executors.
        self._stop_warning = warn_of_steps(optimizer, lambda: _has_session(itself()))
        if not isinstance(optimizer, Optimizer):
            return

        def state_dict() -> dict[str, Any]:
            if self._session is not None and optimizer.ipu_state_is_dirty:
                self._read(self._session)
            else:
                logger.debug("Using cached optimiser state dict")
            return type(optimizer).state_dict(optimizer)

        optimizer.state_dict = state_dict  # type: ignore[method-assign]

    def _read(self, session: DeviceSession) -> None:
        self._states = session.read_states()
        if isinstance(self._optimizer, Optimizer):
            shown = {n: state for n, state in self._states.items() if n not in KEPT_VARIABLES}
            cache_device_state(self._optimizer, shown, self._tensors())
        elif self._synced is not None and self._num_unread:
            self._synced.renew(to_torch(*self._names(), self._states), self._num_unread)
        self._num_unread = 0

    def __del__(self) -> None:
        """Reads the state for a PyTorch optimiser, because it may outlive its executor."""
        if self._num_unread and self._session is not None and not sys.is_finalizing():
            try:
                self._read(self._session)
            except Exception as error:
                logger.warning(
                    "A wrapped model was deleted, and the state of its optimizer could not be "
                    "copied to the host: %s",
                    error,
                )


def _has_session(link: OptimizerLink | None) -> bool:
    return link is not None and link._session is not None


def _own_parameters(optimizer: torch.optim.Optimizer) -> dict[str, torch.nn.Parameter]:
    """Returns the parameters of all groups, with their positions as names."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return {str(index): parameter for index, parameter in enumerate(parameters)}
