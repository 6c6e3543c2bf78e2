"""What one run of a model computed: a list of values, each with where it comes from.

A value is one result of one operation; what names a tensor from outside (an input, a parameter, a
gradient, a weight after the update) is a value with a name. A window computes a value several
times, once at each *place*: a micro-batch of a replica.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

import torch

Place = tuple[int, int]

# What belongs to a window, such as a weight after the update, is read here.
FIRST: Place = (0, 0)

# The kind of a value that has the numbers of another one, and is there for those who ask for it.
VIEW = "view"


class Direction(Enum):
    """In which part of a window a value is made."""

    GIVEN = "given"  # From outside: inputs, parameters and buffers.
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True)
class Value:
    """Where one value comes from.

    Attributes:
        kind: the operator without its namespace, such as "addmm"; "tensor" of a named one.
        result: which of the results of the operation.
        module: dotted path of the module whose forward was running.
        line: "file:line" of the user's code.
        name: of a named tensor; else "".
        settings: the arguments of the operation that are numbers or words, by name.
        is_random: whether random numbers made it.
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
        """What the operation, or the tensor, is called in a report."""
        if self.name:
            return self.name
        return f"{self.kind}, result {self.result}" if self.result else self.kind


def given(name: str, tensor: torch.Tensor) -> Value:
    """Returns the value that an input, a parameter or a buffer is."""
    return named(name, Direction.GIVEN, tensor)


def named(name: str, direction: Direction, tensor: torch.Tensor) -> Value:
    """Returns the value of a tensor that has a name, which may be that of a parameter."""
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
    """The values of one run."""

    @property
    def title(self) -> str:
        """What the run is called in a report."""

    @property
    def values(self) -> tuple[Value, ...]:
        """In the order in which they were first made."""

    @property
    def places(self) -> tuple[Place, ...]:
        """Each micro-batch of each replica, in order."""

    def read(self, index: int, place: Place) -> torch.Tensor | None:
        """Returns value number `index` at a place; `None` if it was not made there."""


# Shows how far a run is: called with what goes on and how many values it has, it gives a function
# to be called after each of them.
Progress = Callable[[str, int], AbstractContextManager[Callable[[], object]]]


def unseen(description: str, count: int) -> AbstractContextManager[Callable[[], object]]:
    """Shows nothing."""
    return nullcontext(lambda: None)


class TakenValues:
    """The values of a run that goes on: which there are, and at which places each was made."""

    def __init__(self) -> None:
        """Begins without any."""
        self._values: list[Value] = []
        self._places: list[list[Place]] = []

    def declare(self, value: Value) -> int:
        """Adds a value to the list; returns its number."""
        self._values.append(value)
        self._places.append([])
        return len(self._values) - 1

    def _note(self, index: int, place: Place, tensor: torch.Tensor) -> None:
        """Notes a place of a value; the first one decides on type and shape."""
        if not self._places[index]:
            value = self._values[index]
            self._values[index] = replace(value, dtype=tensor.dtype, shape=tuple(tensor.shape))
        self._places[index].append(place)


class Sink(Protocol):
    """Takes the values of a run while it goes on."""

    def declare(self, value: Value) -> int:
        """Adds a value to the list; returns its number."""

    def add(self, index: int, place: Place, tensor: torch.Tensor) -> None:
        """Takes value number `index` at a place."""
