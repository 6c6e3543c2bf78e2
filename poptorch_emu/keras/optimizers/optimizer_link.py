"""Links a Keras optimiser to its counterpart on the device: learning rate, state and updates.

The state is on the device while it trains. Reading a variable of the Keras optimiser returns its
newest value, and assigning one sends the new value to the device before the next execution.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import torch

from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.keras.optimizers.optimizer_formulas import convert

_OWNER = "_poptorch_owner"
_STEP = "Step"


class KerasOptimizerLink:
    """Synchronizes a Keras optimiser with its counterpart on the device.

    Attributes:
        optimizer: counterpart on the device.
    """

    def __init__(self, optimizer: Any, trained: Mapping[str, Any], updates: int) -> None:
        """Converts the optimiser.

        Args:
            optimizer: built optimiser of Keras.
            trained: trained weights, by the names of the parameters.
            updates: number of updates of one execution.

        Raises:
            ValueError: the optimiser has no counterpart.
        """
        self._keras = optimizer
        self._names = list(trained)
        self._rate = learning_rate_of(optimizer)
        self._conversion = convert(optimizer, list(trained.values()), self._rate)
        self.optimizer = self._conversion.optimizer
        self._executor: PoplarExecutor | None = None
        self._num_run = 0  # Micro-batches of one replica before the current execution.
        self._is_ahead = False  # Whether the device's state is newer.
        self._is_edited = True  # Whether the host's variables are newer.
        self._seen_iterations = -1
        schedule = optimizer._learning_rate
        if updates > 1 and isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            warnings.warn(
                f"The learning rate of {type(schedule).__name__} is read once for each execution, "
                f"which makes {updates} updates with it. Use a smaller steps_per_execution for a "
                "finer schedule.",
                stacklevel=6,
            )
        self._claim()

    def start(self, executor: PoplarExecutor) -> None:
        """Takes the executor, which is compiled."""
        self._executor = executor

    def prepare(self) -> None:
        """Sends the changes of the host since the last execution."""
        executor = self._executor
        assert executor is not None, "an execution follows a compilation"
        self._claim()
        rate = learning_rate_of(self._keras)
        if rate != self._rate:
            if self._conversion.depends_on_rate:
                self.bring_home()
                self._is_edited = True
            self._conversion.set_learning_rate(rate)
            self._rate = rate
            executor.setOptimizer(self.optimizer)
        if self._is_edited or self._seen_iterations != self._iterations():
            self._send()
        self._num_run = self._counter()

    def num_micro_batches(self) -> int:
        """Returns how many micro-batches of each replica the last execution's updates used."""
        return self._counter() - self._num_run

    def finish(self) -> None:
        """Counts the updates of an execution; a failed execution may have made fewer."""
        assert self._executor is not None, "an execution was prepared"
        accumulation = self._executor._compiled().config.gradient_accumulation
        updates = self.num_micro_batches() // accumulation
        if updates:
            self._is_ahead = bool(self._conversion.states)
            self._seen_iterations = self._iterations() + updates
            self._keras._iterations.assign(self._seen_iterations)

    def bring_home(self) -> None:
        """Copies the device's state into Keras's variables, if it is newer."""
        if not self._is_ahead:
            return
        self._is_ahead = False
        device = self.optimizer.state_dict()["ipu_state"]
        factor = self._conversion.factor(self._rate)
        with torch.no_grad():
            for name, variable in self._named_states():
                variable._value.copy_(device[name].reshape(variable.shape) / factor)

    def edit(self) -> None:
        """Records that a variable is about to change on the host."""
        self.bring_home()
        self._is_edited = True

    def release(self) -> None:
        """Copies the state back and makes the variables Keras's own again."""
        self.bring_home()
        for variable in self._variables():
            if vars(variable).get(_OWNER) is self:
                del vars(variable)[_OWNER]
                variable.__class__ = keras.Variable
        self._executor = None

    def _claim(self) -> None:
        """Takes over the variables, which another program may have owned meanwhile."""
        for variable in self._variables():
            owner = vars(variable).get(_OWNER)
            if owner is self:
                continue
            if owner is not None:
                owner.bring_home()
            self._is_edited = True
            vars(variable)[_OWNER] = self
            variable.__class__ = _DeviceVariable

    def _send(self) -> None:
        """Sends the state in Keras's variables to the device, with the next execution."""
        self._is_edited = False
        self._seen_iterations = self._iterations()
        self.bring_home()
        current = self.optimizer.state_dict()
        states = dict(current["ipu_state"])
        factor = self._conversion.factor(self._rate)
        for name, variable in self._named_states():
            states[name] = (variable._value.detach() * factor).reshape(states[name].shape).clone()
        if self._conversion.has_steps:
            for name in states:
                if name.startswith(f"{_STEP}___"):
                    states[name] = torch.full_like(states[name], self._seen_iterations)
        if states:
            self.optimizer.load_state_dict({"ipu_state": states, "ipu_param": current["ipu_param"]})

    def _counter(self) -> int:
        """Returns the counter of the device's random numbers, which leaves failed updates out."""
        return 0 if self._executor is None else int(self._executor.rng_state[1])

    def _iterations(self) -> int:
        return int(self._keras._iterations.value)

    def _named_states(self) -> list[tuple[str, Any]]:
        return [
            (f"{prefix}___{name}", variable)
            for prefix, variables in self._conversion.states.items()
            for name, variable in zip(self._names, variables, strict=True)
        ]

    def _variables(self) -> Sequence[Any]:
        return [variable for _, variable in self._named_states()]


class _DeviceVariable(keras.Variable):  # type: ignore[misc]
    """A variable of an optimiser whose newest value may be on the device."""

    @property
    def value(self) -> Any:
        """The newest value."""
        vars(self)[_OWNER].bring_home()
        return super().value

    def _direct_assign(self, value: Any) -> None:
        vars(self)[_OWNER].edit()
        super()._direct_assign(value)


def learning_rate_of(optimizer: Any) -> float:
    """Returns the learning rate of Keras's next update."""
    return float(keras.ops.convert_to_tensor(optimizer.learning_rate))
