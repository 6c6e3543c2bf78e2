"""What an operator is that has a name, and how its inputs and attributes are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.log import logger
from poptorch_emu.structure import as_list

Attributes = Mapping[str, Any]
# Stands for the default of an attribute that must be given.
REQUIRED = object()


@dataclass(frozen=True)
class Attribute:
    """What an attribute may be.

    Attributes:
        kind: `int`, `float` or `str`; an integer is a float, too, and a bool is an integer.
        default: its value where none is given; `REQUIRED` if one must be.
        is_list: whether it is a list of such values.
    """

    kind: type
    default: Any = REQUIRED
    is_list: bool = False

    def accepts(self, value: Any) -> bool:
        """Tells whether a value is of this kind."""
        kinds = (int, float) if self.kind is float else (self.kind,)
        if self.is_list:
            return isinstance(value, (list, tuple)) and all(isinstance(v, kinds) for v in value)
        return isinstance(value, kinds)

    def __str__(self) -> str:
        return f"a list of {self.kind.__name__}" if self.is_list else self.kind.__name__


@dataclass(frozen=True)
class NamedOperator:
    """An operator of a name and domain.

    Attributes:
        title: domain and name, as errors say them.
        run: takes the inputs and all attributes; returns a tensor or several.
        inputs: what the inputs are called.
        attributes: those it has; others are taken and have no effect, as on the IPU.
    """

    title: str
    run: Callable[[Sequence[torch.Tensor], Attributes], Any]
    inputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def __call__(self, *inputs: torch.Tensor, **given: Any) -> list[torch.Tensor]:
        """Returns the results.

        Raises:
            Error: the number of inputs, an attribute, or a shape does not fit.
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
