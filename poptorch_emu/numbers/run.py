"""The values that one run of a model computed, each with a description of its origin.

A value is one result of one operation. A tensor from outside (an input, a parameter, a gradient, a
weight after the update) is a value with a name. A window computes a value several times, once at
each *position*: a (micro-batch, replica).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

import torch

Position = tuple[int, int]

# Position of values that exist once in a window, such as a weight after the update.
FIRST: Position = (0, 0)

# Kind of a view. Runs keep a view only as the output of a module, and comparisons skip it.
VIEW = "view"


class Direction(Enum):
    """The part of a window that computes a value."""

    GIVEN = "given"  # From outside: inputs, parameters and buffers.
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True)
class Value:
    """The description of a value and its origin.

    Attributes:
        kind: operator without its namespace, such as "addmm"; "tensor" for a named tensor.
        result: index of the value among the results of the operation.
        module: dotted path of the module whose forward was running.
        line: "file:line" of the user's code.
        name: name of a named tensor; "" for other values.
        settings: numbers and strings among the arguments of the operation, by name.
        is_random: whether the value consists of random numbers.
    """

    kind: str
    result: int
    direction: Direction
    module: str
    line: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)
    is_random: bool = False

    @property
    def title(self) -> str:
        """Name of the tensor or of the operation in reports."""
        if self.name:
            return self.name
        return f"{self.kind}, result {self.result}" if self.result else self.kind


def given(name: str, tensor: torch.Tensor) -> Value:
    """Returns the description of an input, a parameter or a buffer."""
    return named(name, Direction.GIVEN, tensor)


def named(name: str, direction: Direction, tensor: torch.Tensor) -> Value:
    """Returns the description of a named tensor; its name may contain that of a parameter."""
    module = name.partition(" of ")[2] or name
    path = module.rpartition(".")[0]
    return Value("tensor", 0, direction, path, "", tensor.dtype, tuple(tensor.shape), name)


def gradient_name(parameter: str) -> str:
    """Returns the name of the gradient of a parameter in one micro-batch."""
    return f"gradient of {parameter}"


def updated_name(parameter: str) -> str:
    """Returns the name of a parameter after the update."""
    return f"update of {parameter}"


def state_name(state: str) -> str:
    """Returns the name of a state of the optimiser after the update."""
    name, _, parameter = state.partition("___")
    return f"update of {parameter}: {name}" if parameter else f"update of {name}"


class Run(Protocol):
    """The values of one run, which can be read."""

    @property
    def title(self) -> str:
        """Name of the run in reports."""

    @property
    def values(self) -> tuple[Value, ...]:
        """Descriptions of all values, in the order of their first computation."""

    @property
    def positions(self) -> tuple[Position, ...]:
        """(micro-batch, replica) of all values, in order."""

    def read(self, index: int, position: Position) -> torch.Tensor | None:
        """Returns value number `index` at a position; `None` if the run has no such value there."""


# Shows the progress of a run. It receives a description and the number of values, and its context
# yields a function to call after each value.
Progress = Callable[[str, int], AbstractContextManager[Callable[[], object]]]


def unseen(description: str, count: int) -> AbstractContextManager[Callable[[], object]]:
    """Shows no progress."""
    return nullcontext(lambda: None)


class TakenValues:
    """Descriptions of the values of a run, with the positions at which each value exists."""

    def __init__(self) -> None:
        """Creates an empty list."""
        self._values: list[Value] = []
        self._positions: list[list[Position]] = []

    def declare(self, value: Value) -> int:
        """Appends the description of a value; returns its number."""
        self._values.append(value)
        self._positions.append([])
        return len(self._values) - 1

    def _note(self, index: int, position: Position, tensor: torch.Tensor) -> None:
        """Records a position of a value; the first tensor determines its type and shape."""
        if not self._positions[index]:
            value = self._values[index]
            self._values[index] = replace(value, dtype=tensor.dtype, shape=tuple(tensor.shape))
        self._positions[index].append(position)


class Sink(Protocol):
    """Receiver of the values of a run while it goes on."""

    def declare(self, value: Value) -> int:
        """Appends the description of a value; returns its number."""

    def add(self, index: int, position: Position, tensor: torch.Tensor) -> None:
        """Receives value number `index` at a position."""
