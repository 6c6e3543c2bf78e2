"""Programs of one model that are valid for different values of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from poptorch_emu.compile.executable import Executable
from poptorch_emu.errors import Error, make_error
from poptorch_emu.ir.graph import SourceKind
from poptorch_emu.runtime.arguments import Arguments
from poptorch_emu.structure import flatten_tensors
from poptorch_emu.trace.values.value_guards import Mismatch
from poptorch_emu.troubleshooting import Topic

_MAX_LETTERS = 80


@dataclass(frozen=True)
class GuardedProgram:
    """A program, and a copy of the arguments at its capture."""

    executable: Executable
    arguments: Arguments


class GuardedPrograms:
    """The programs of a model, in the order of their capture."""

    def __init__(self) -> None:
        """Starts without programs."""
        self._stored: list[GuardedProgram] = []

    def add(self, executable: Executable, arguments: Arguments) -> Arguments:
        """Stores a program, and returns its arguments, copied if the program has guards."""
        if executable.guards.reads:
            # The user may change these tensors in place; a later trace must read the same values.
            arguments = arguments.copied()
        self._stored.append(GuardedProgram(executable, arguments))
        return arguments

    def clear(self) -> None:
        """Drops all programs."""
        self._stored.clear()

    def find(
        self,
        mismatch: Mismatch,
        arguments: Arguments,
        tensors: Sequence[torch.Tensor],
        variable: Callable[[str], torch.Tensor],
    ) -> GuardedProgram | None:
        """Returns a program that is valid for a call, or None if a new one must be captured.

        Args:
            mismatch: the value that makes the current program invalid.
            arguments: arguments of the call.
            tensors: tensors of these arguments.
            variable: returns the current value of a parameter or buffer from its name.

        Raises:
            Error: no program is valid, and the limit of stored programs is reached.
        """
        for program in self._stored:
            if program.executable.guards.mismatch(tensors, variable) is None:
                return program
        limit = self._stored[0].executable.config.max_guarded_programs
        if len(self._stored) >= limit:
            raise _error(
                mismatch,
                arguments,
                f"A program for these values would be one more than the {limit} that "
                f"emulator.set_value_guards(options, max_programs={limit}) allows. Raise "
                "max_programs, keep the values the same, or call destroy() to begin anew",
            )
        return None


def disagreement(mismatch: Mismatch, arguments: Arguments) -> Error:
    """Returns the error for a micro-batch whose values differ from the first of the call."""
    return _error(
        mismatch,
        arguments,
        "All micro-batches of a call run one program, which is captured with the values of the "
        "first. Make batches whose micro-batches agree, or call the model with one micro-batch "
        "(deviceIterations(1), gradientAccumulation(1), replicationFactor(1))",
    )


def check_same_states(before: Executable, after: Executable) -> None:
    """Checks that two programs train the same weights.

    Raises:
        Error: only one of the programs has some state of the optimiser.
    """
    old, new = (
        {variable.name for variable in each.variables.values() if variable.is_state}
        for each in (before, after)
    )
    if difference := sorted(old ^ new):
        raise make_error(
            f"With the values of this call other weights get a gradient: {difference[0]} is a "
            "state of the optimizer in one program only, and would be lost between calls. Let all "
            "weights take part in each call, or use an optimizer without states (SGD without "
            f"momentum); {Topic.VALUE_GUARDS}"
        )


def _error(mismatch: Mismatch, arguments: Arguments, ways_out: str) -> Error:
    read = mismatch.read
    expected, found = _shown(read.value, mismatch.found), _shown(mismatch.found, read.value)
    return make_error(
        f"The value that forward reads at {read.line} depends on {_origin(mismatch, arguments)}. "
        f"It is {expected} in the captured program, but {found} in micro-batch "
        f"{mismatch.micro_batch} of this call. Nothing has run. {ways_out}; {Topic.VALUE_GUARDS}"
    )


def _origin(mismatch: Mismatch, arguments: Arguments) -> str:
    """Returns the names of the inputs, parameters and buffers that affect a value."""
    owners: list[str] = []
    for name, value in arguments.items():
        owners += [name] * len(flatten_tensors(value))
    numbers = sorted(map(int, mismatch.read.names(SourceKind.INPUT)))
    inputs = list(dict.fromkeys(f"the input {owners[number]}" for number in numbers))
    return " and ".join([*inputs, *mismatch.read.names(SourceKind.VARIABLE)])


def _shown(value: torch.Tensor, other: torch.Tensor) -> str:
    """Returns the text of a value; for a long one, only the first element that differs."""
    text = str(value.tolist())
    if len(text) <= _MAX_LETTERS:
        return text
    if value.shape != other.shape:
        return f"a tensor of shape {list(value.shape)}"
    different = (value != other).reshape(-1).nonzero().reshape(-1)
    place = int(different[0]) if len(different) else 0
    return f"a tensor with {value.reshape(-1)[place].item()} at element {place}"
