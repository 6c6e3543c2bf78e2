"""The arguments of an operation by the names of its schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Protocol

import torch

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
    """Returns the arguments of an operation by name, with defaults for missing ones."""
    return SimpleNamespace(**named_arguments(call.target, call.args, call.kwargs))


def with_arguments(call: Call, **changes: Any) -> tuple[Any, ...]:
    """Returns all arguments of an operation by place, with some of them changed.

    Args:
        call: operation whose arguments can all be passed by place.
        changes: new values by the names of the schema.
    """
    named = vars(arguments_of(call))
    assert named.keys() >= changes.keys(), f"{call.target} has no argument of {set(changes)}"
    return tuple({**named, **changes}.values())


def named_arguments(
    target: OpOverload, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the arguments of a call by name, with defaults for missing ones."""
    arguments = target._schema.arguments
    given = {each.name: value for each, value in zip(arguments, args, strict=False)} | dict(kwargs)
    return {each.name: given.get(each.name, each.default_value) for each in arguments}


def written_arguments(
    target: OpOverload, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> Iterator[Any]:
    """Yields the arguments that an operator writes to."""
    if target._schema.is_mutable:
        named = named_arguments(target, args, kwargs)
        for each in target._schema.arguments:
            if each.alias_info is not None and each.alias_info.is_write:
                yield named[each.name]


def is_random(call: Call) -> bool:
    """Returns whether an operation draws random numbers; attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in getattr(call.target, "tags", ()):
        return False
    return bool(getattr(arguments_of(call), "dropout_p", None) != 0.0)
