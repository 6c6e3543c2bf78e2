"""The arguments of an operation by the names of its schema."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Protocol

from poptorch_emu.torch_versions import OpOverload


class Call(Protocol):
    """An operation with its arguments: a node of a graph, or an instruction of a segment."""

    @property
    def target(self) -> Any:
        """The operator."""

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments by place."""

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The arguments by name."""


def arguments_of(call: Call) -> SimpleNamespace:
    """Returns the arguments of an operation, with the defaults of those that are not given."""
    return SimpleNamespace(**_named(call))


def with_arguments(call: Call, **changes: Any) -> tuple[Any, ...]:
    """Returns all arguments of an operation by place, of which some are others.

    Args:
        call: of an operator whose arguments all have places.
        changes: by the names of the schema.
    """
    named = _named(call)
    assert named.keys() >= changes.keys(), f"{call.target} has no argument of {set(changes)}"
    return tuple({**named, **changes}.values())


def _named(call: Call) -> dict[str, Any]:
    target: OpOverload = call.target
    given = dict(zip(_names_of(target), call.args, strict=False)) | dict(call.kwargs)
    return {
        argument.name: given.get(argument.name, argument.default_value)
        for argument in target._schema.arguments
    }


def _names_of(target: OpOverload) -> list[str]:
    return [argument.name for argument in target._schema.arguments]
