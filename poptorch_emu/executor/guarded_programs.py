"""The programs of one model that hold for different values of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from poptorch_emu.compile.executable import Executable
from poptorch_emu.errors import Error, make_error
from poptorch_emu.ir.graph import SourceKind
from poptorch_emu.runtime.arguments import Arguments
from poptorch_emu.structure import flatten_tensors
from poptorch_emu.trace.value_guards import Mismatch
from poptorch_emu.troubleshooting import Topic

_MAX_LETTERS = 80


@dataclass(frozen=True)
class GuardedProgram:
    """A program, and a copy of the arguments that it was captured with."""

    executable: Executable
    arguments: Arguments


class GuardedPrograms:
    """Stores the programs of a model, in the order of their capture."""

    def __init__(self) -> None:
        """Starts without any."""
        self._stored: list[GuardedProgram] = []

    def add(self, executable: Executable, arguments: Arguments) -> Arguments:
        """Stores a program; returns the arguments to keep, which nobody changes if it reads any."""
        if executable.guards.reads:
            # The user may change these tensors in place; a later trace must read the same values.
            arguments = arguments.copied()
        self._stored.append(GuardedProgram(executable, arguments))
        return arguments

    def clear(self) -> None:
        """Forgets all."""
        self._stored.clear()

    def find(
        self,
        mismatch: Mismatch,
        arguments: Arguments,
        tensors: Sequence[torch.Tensor],
        variable: Callable[[str], torch.Tensor],
    ) -> GuardedProgram | None:
        """Returns a program that holds for a call, or `None` if one is to be captured.

        Args:
            mismatch: why the present program does not hold.
            arguments: of the call.
            tensors: those of the arguments.
            variable: returns the present value of a parameter or buffer by its name.

        Raises:
            Error: no program holds, and no more may be stored.
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
    """Returns the error for a micro-batch that has other values than the first of the same call."""
    return _error(
        mismatch,
        arguments,
        "All micro-batches of a call run one program, which is captured with the values of the "
        "first. Make batches whose micro-batches agree, or call the model with one micro-batch "
        "(deviceIterations(1), gradientAccumulation(1), replicationFactor(1))",
    )


def check_same_states(before: Executable, after: Executable) -> None:
    """Checks that another program trains the same weights.

    Raises:
        Error: the optimizer's state of one program has no place in the other.
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
    """Returns the names of the inputs, and of parameters and buffers, that a value depends on."""
    owners: list[str] = []
    for name, value in arguments.items():
        owners += [name] * len(flatten_tensors(value))
    numbers = sorted(map(int, mismatch.read.names(SourceKind.INPUT)))
    inputs = list(dict.fromkeys(f"the input {owners[number]}" for number in numbers))
    return " and ".join([*inputs, *mismatch.read.names(SourceKind.VARIABLE)])


def _shown(value: torch.Tensor, other: torch.Tensor) -> str:
    """Returns a value in words; of a long one, where it begins to differ from another."""
    text = str(value.tolist())
    if len(text) <= _MAX_LETTERS:
        return text
    if value.shape != other.shape:
        return f"a tensor of shape {list(value.shape)}"
    different = (value != other).reshape(-1).nonzero().reshape(-1)
    place = int(different[0]) if len(different) else 0
    return f"a tensor with {value.reshape(-1)[place].item()} at element {place}"
