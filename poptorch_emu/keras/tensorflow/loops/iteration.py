"""The second run of a function, which is traced: one pass of its loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import torch

from poptorch_emu.keras.capture.batches import with_leaves
from poptorch_emu.keras.capture.capture_state import Capture, DeviceLoop, Pass, Update
from poptorch_emu.keras.capture.integers import as_state, from_state
from poptorch_emu.keras.capture.python_state import PythonState
from poptorch_emu.keras.capture.updates_in_program import apply
from poptorch_emu.keras.tensorflow.loops.discovery import Discovered, as_counter, body_of
from poptorch_emu.keras.tensorflow.loops.loop_variables import (
    frame_of_loop,
    local_variables,
    set_local_variables,
    unrolled,
)


class Iteration(Capture):
    """Provides a function with the tensors of one iteration."""

    def __init__(
        self,
        discovered: Discovered,
        replicas: int,
        is_first: torch.Tensor,
        tensors: Sequence[torch.Tensor],
        states: Sequence[torch.Tensor],
        python: PythonState,
    ) -> None:
        """Prepares the tensors of an iteration.

        Args:
            discovered: result of the function's first run.
            replicas: number of replicas among which elements are divided.
            is_first: flag that is set in the first iteration.
            tensors: tensors of the elements, then loop variables, then arguments.
            states: values that the previous iteration has handed on.
            python: objects of Python that the function can change.
        """
        super().__init__(replicas, python)
        self._python = python
        self._loops = {loop.ordinal: loop for loop in discovered.loops}
        self._is_first = is_first.reshape(())
        self._states = states
        self._is_in_program = discovered.body.is_in_program
        remaining = iter(tensors)
        self._elements = [
            infeed.packed([_of_shape(next(remaining), shape) for shape in infeed.shapes])
            for infeed in discovered.body.reads
        ]
        self._elements.reverse()
        self._counters = {
            loop.ordinal: as_counter(next(remaining).reshape(()))
            for loop in discovered.loops
            if loop.ordinal in discovered.used_counters
        }
        self._arguments = remaining

    def with_own_tensors(self, arguments: Any) -> Any:
        """Returns arguments with tensors of the device in place of the host's."""
        host = [leaf for leaf in keras.tree.flatten(arguments) if isinstance(leaf, torch.Tensor)]
        own = [_of_shape(next(self._arguments), leaf.shape) for leaf in host]
        return with_leaves(arguments, own, lambda leaf: isinstance(leaf, torch.Tensor))

    def element(self, infeed: Any) -> Any:
        """Returns the next element of the iteration."""
        return self._elements.pop()

    def passes(self, ordinal: int, values: Sequence[Any], is_of_python: bool) -> Iterator[Any]:
        """Yields all values to an ordinary loop, and one value to a loop of the device."""
        loop = self._loops.get(ordinal)
        if loop is None:
            yield from unrolled(self._python, values, is_of_python)
            return
        set_local_variables(frame_of_loop(), self._handed_on(loop))
        with self.one_pass() as opened:
            yield self._counters.get(ordinal, values[0])
        self._hand_on(loop, local_variables(frame_of_loop()))
        self._innermost.enter(DeviceLoop(ordinal, values, opened))

    def known_count(self) -> int | None:
        """Returns the number of iterations of the loop that begins next; `None` if unknown."""
        loop = self._loops.get(self._num_loops)
        return None if loop is None else len(loop.values)

    def update(self, update: Update) -> None:
        """Records the update of an optimiser; applies it now if it is part of the program."""
        super().update(update)
        if self._is_in_program:
            apply(update, self.replicas)

    def body(self) -> Pass:
        """Returns the record of the iteration."""
        body = body_of(self.outermost)[1]
        body.is_in_program = self._is_in_program
        return body

    def _handed_on(self, loop: DeviceLoop) -> dict[str, Any]:
        """Returns the variables from the previous iteration, or from before the loop."""
        states = iter(self._states)
        now = local_variables(frame_of_loop())

        def value(first: Any, form: torch.Tensor) -> torch.Tensor:
            state, is_of_python = next(states), getattr(form, "is_number_of_python", False)
            start = _as_tensor(first, state).to(form.dtype).expand(form.shape)
            found = torch.where(self._is_first, start, from_state(state, form.dtype))
            return as_counter(found) if is_of_python else found

        handed_on = {}
        for name, (_, form) in loop.carried.items():
            leaves = map(value, keras.tree.flatten(now[name]), keras.tree.flatten(form))
            handed_on[name] = keras.tree.pack_sequence_as(form, list(leaves))
        return handed_on

    def _hand_on(self, loop: DeviceLoop, values: dict[str, Any]) -> None:
        states = iter(self._states)
        for name in loop.carried:
            for leaf in keras.tree.flatten(values[name]):
                state = next(states)
                with torch.no_grad():
                    state.copy_(as_state(_as_tensor(leaf, state).detach()))


def _of_shape(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Returns a tensor in a shape; no operation is needed if the tensor already has the shape."""
    return tensor if tuple(tensor.shape) == tuple(shape) else tensor.reshape(shape)


def _as_tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return torch.as_tensor(getattr(value, "numpy", lambda: value)(), device=like.device)
