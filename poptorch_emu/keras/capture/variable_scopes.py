"""Values of variables while a model or a function is traced, and the storage of assigned values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.capture_state import current
from poptorch_emu.keras.capture.integers import as_state, from_state
from poptorch_emu.keras.capture.tensorflow_variables import counterpart


class StoringScope(keras.StatelessScope):  # type: ignore[misc]
    """Gives variables the tracer's values, and stores assignments in these values.

    Attributes:
        has_stored: whether anything was assigned to a variable.
    """

    def __init__(
        self,
        variables: Mapping[str, Any],
        values: Mapping[str, torch.Tensor],
        device: torch.device,
        of_host: Sequence[Any] = (),
        trained: Collection[Any] | None = None,
    ) -> None:
        """Maps variables to their values by equal names.

        Args:
            variables: variables of Keras, by name.
            values: value of each variable, by name.
            device: device of the values.
            of_host: variables whose values the host updates.
            trained: variables that only the optimiser may assign; by default all trainable
                ones.
        """
        mapping = [(variable, values[name]) for name, variable in variables.items()]
        self._of_host = list(of_host)
        mapping += [(v, torch.zeros(tuple(v.shape), device=device)) for v in self._of_host]
        super().__init__(mapping, collect_losses=True, initialize_variables=False)
        self.has_stored = False
        self._stored = {id(v): value for v, value in mapping[: len(variables)]}
        if trained is None:
            trained = [variable for variable in variables.values() if variable.trainable]
        self._trained = {id(variable) for variable in trained}

    def is_trained(self, variable: Any) -> bool:
        """Returns whether an optimiser updates a variable."""
        return id(variable) in self._trained

    def add_update(self, update: tuple[Any, torch.Tensor]) -> None:
        """Stores a new value of a variable.

        Raises:
            Error: the variable is not the model's state, or its value cannot return from the
                device.
        """
        variable, value = update
        if any(variable is each for each in self._of_host):
            return
        stored = self._stored.get(id(variable))
        reason = ""
        if stored is None:
            reason = (
                "is not among the weights of the model, for example because it belongs to a metric"
            )
        elif self.is_trained(variable):
            reason = "is trained by the optimizer, too"
        elif not stored.is_floating_point():
            reason = f"is of type {variable.dtype}, which is not brought back from the device"
        if stored is None or reason:
            raise compiler_error(
                f"While the model runs, a layer assigns to variable {variable.path!r}, which "
                f"{reason}. Keep state of the device in floating-point weights with "
                "add_weight(trainable=False), and update metrics outside of call()."
            )
        self.has_stored = True
        self._store(variable, stored, value.detach())

    def _store(self, variable: Any, stored: torch.Tensor, value: torch.Tensor) -> None:
        with torch.no_grad():
            stored.copy_(value)


class ReadingScope(StoringScope):
    """Gives variables that no optimiser updates their own gradient, because a tape may ask for it.

    The loss does not depend on these gradients. Integer variables that are only read have the
    values that the host gives them in each run. Assignments are stored at the end of the
    iteration, so that values read earlier stay unchanged.
    """

    def __init__(
        self, given: Mapping[int, torch.Tensor], counts: Sequence[Any], *args: Any
    ) -> None:
        super().__init__(*args)
        self._given = given  # Values of integers, by the ids of their variables.
        self._counts = {id(each): counterpart(each) for each in counts}
        self._leaves: dict[int, torch.Tensor] = {}
        self._pending: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def get_current_value(self, variable: Any) -> Any:
        """Returns the current value of a variable."""
        if id(variable) in self._given:
            return self._given[id(variable)]
        if id(variable) in self._counts:
            state = self.get_current_value(self._counts[id(variable)])
            return from_state(state, getattr(torch, variable.dtype))
        stored = super().get_current_value(variable)
        _, value = self._pending.get(id(variable), (None, stored))
        if stored is None or not stored.requires_grad or self.is_trained(variable):
            return value
        if id(variable) not in self._leaves:
            self._leaves[id(variable)] = value.detach().requires_grad_()
        return self._leaves[id(variable)]

    def add_update(self, update: tuple[Any, torch.Tensor]) -> None:
        """Stores a new value of a variable."""
        if id(update[0]) in self._counts:
            update = self._counts[id(update[0])], as_state(update[1])
        super().add_update(update)

    def choose(
        self, pred: torch.Tensor, true_fn: Callable[[], Any], false_fn: Callable[[], Any]
    ) -> None:
        """Runs two branches, and keeps the assignments of the one that a flag selects."""
        before, outcomes = self._pending, []
        for branch in (true_fn, false_fn):
            self._pending = dict(before)
            self._leaves.clear()
            branch()
            outcomes.append(self._pending)
        self._pending, (chosen, other) = before, outcomes
        self._leaves.clear()
        for key, (stored, _) in {**chosen, **other}.items():
            old = before.get(key, (stored, stored))
            one, two = (each.get(key, old)[1].to(stored.dtype) for each in (chosen, other))
            before[key] = stored, torch.where(pred, one, two)

    def begin_update(self) -> None:
        """Allows assignments to trained weights from now on."""
        self._trained = set()

    @property
    def has_pending(self) -> bool:
        """Whether any variable has a value to be stored."""
        return bool(self._pending)

    def store_all(self) -> None:
        """Stores all new values in their variables."""
        with torch.no_grad():
            for stored, value in self._pending.values():
                stored.copy_(value)

    def _store(self, variable: Any, stored: torch.Tensor, value: torch.Tensor) -> None:
        self._pending[id(variable)] = (stored, value)
        before, capture = self._leaves.pop(id(variable), None), current()
        if before is not None and capture is not None:
            capture.former_values.setdefault(id(variable), []).append(before)
