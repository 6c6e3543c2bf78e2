"""Definition of a built-in operator, and checks of its inputs and attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.log import logger
from poptorch_emu.structure import as_list

Attributes = Mapping[str, Any]
# Marks an attribute without a default value.
REQUIRED = object()


@dataclass(frozen=True)
class Attribute:
    """Allowed values of an attribute.

    Attributes:
        kind: `int`, `float` or `str`; an `int` is also a `float`, and a `bool` is also an `int`.
        default: value if none is given; `REQUIRED` if one must be given.
        is_list: whether the attribute is a list of such values.
    """

    kind: type
    default: Any = REQUIRED
    is_list: bool = False

    def accepts(self, value: Any) -> bool:
        """Returns whether a value is allowed."""
        kinds = (int, float) if self.kind is float else (self.kind,)
        if self.is_list:
            return isinstance(value, (list, tuple)) and all(isinstance(v, kinds) for v in value)
        return isinstance(value, kinds)

    def __str__(self) -> str:
        return f"a list of {self.kind.__name__}" if self.is_list else self.kind.__name__


@dataclass(frozen=True)
class NamedOperator:
    """A built-in operator with a name and a domain.

    Attributes:
        title: domain and name, as error messages show them.
        run: function of the inputs and all attributes that returns one or more tensors.
        inputs: names of the inputs.
        attributes: attributes of the operator; others are ignored, as on the IPU.
    """

    title: str
    run: Callable[[Sequence[torch.Tensor], Attributes], Any]
    inputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def __call__(self, *inputs: torch.Tensor, **given: Any) -> list[torch.Tensor]:
        """Returns the results of the operator as a list.

        Raises:
            Error: the number of inputs, an attribute, or a shape is wrong.
        """
        if len(inputs) != len(self.inputs):
            raise compiler_error(
                f"Custom operator {self.title} has {len(self.inputs)} inputs "
                f"({', '.join(self.inputs)}), but was given {len(inputs)}."
            )
        values = self._values(given)
        try:
            return as_list(self.run(inputs, values))
        except (IndexError, TypeError, ValueError) as cause:
            raise compiler_error(f"Custom operator {self.title}: {cause}") from cause

    def _values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        values = {name: one.default for name, one in self.attributes.items()}
        for name, value in given.items():
            expected = self.attributes.get(name)
            if expected is None:
                logger.info(
                    "Custom operator %s has no attribute %r; it has no effect.", self.title, name
                )
            elif not expected.accepts(value):
                raise compiler_error(
                    f"Custom operator {self.title}: the attribute {name!r} is {value!r}; expected "
                    f"{expected}."
                )
            else:
                values[name] = value
        missing = [name for name, value in values.items() if value is REQUIRED]
        if missing:
            raise compiler_error(
                f"Custom operator {self.title} needs the attributes {missing}, but was given "
                f"{sorted(given)}."
            )
        return values
