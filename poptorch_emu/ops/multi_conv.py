"""Groups of convolutions, which PopART plans together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poptorch_emu.enums import MultiConvPlanType
from poptorch_emu.errors import compiler_error, require
from poptorch_emu.trace.places import blocks
from poptorch_emu.trace.recording.regions import current

_CONVOLUTION = torch.ops.aten.convolution.default

_open: list[MultiConv] = []


class MultiConv:
    """Groups the convolutions of a context (accepted): settings are checked, results the same.

    Each setter returns the object, so that calls can be chained. A list holds one value for each
    convolution.
    """

    def __init__(self) -> None:
        self._lists: dict[str, int] = {}
        self._first = 0

    def __repr__(self) -> str:
        given = ", ".join(self._lists)
        return f"<MultiConv with {given}>" if given else "MultiConv()"

    def availableMemoryProportions(self, value: Any) -> MultiConv:
        """Sets the share of the memory that each convolution may use: a float, or a list of floats.

        Raises:
            AssertionError: the value has another type.
        """
        values = self._listed("availableMemoryProportions", value)
        is_good = values != [] and all(isinstance(item, float) for item in values)
        require(is_good, f"Invalid available memory proportion! Got {value!r}; expected a float.")
        return self

    def partialsTypes(self, value: Any) -> MultiConv:
        """Sets the dtype of partial sums: `torch.float`, `torch.half`, or a list of them.

        Raises:
            ValueError: the value is neither.
        """
        values = self._listed("partialsTypes", value)
        if not values or any(item not in (torch.float, torch.half) for item in values):
            raise ValueError(
                "Invalid partials types. Expecting torch.float or torch.half, or a list of them, "
                f"but got {value!r}."
            )
        return self

    def enableConvDithering(self, value: Any) -> MultiConv:
        """Sets whether the layout of the convolutions is dithered: a bool, or a list of bools.

        Raises:
            ValueError: the value has another type.
        """
        values = self._listed("enableConvDithering", value)
        if not all(isinstance(item, bool) for item in values):
            raise ValueError(f"value must be bool or list of bools, but is {value!r}.")
        return self

    def planType(self, value: MultiConvPlanType | None) -> MultiConv:
        """Sets how the convolutions share the chip.

        Raises:
            AssertionError: the value is not a `MultiConvPlanType`.
        """
        is_good = value is None or isinstance(value, MultiConvPlanType)
        require(is_good, f"Invalid plan type! Got {value!r}; expected a MultiConvPlanType.")
        return self

    def perConvReservedTiles(self, value: int) -> MultiConv:
        """Sets the number of tiles that are reserved for each convolution.

        Raises:
            AssertionError: the value is not an integer.
        """
        require(isinstance(value, int), f"perConvReservedTiles is {value!r}, not an integer.")
        return self

    def cycleBackOff(self, value: float) -> MultiConv:
        """Sets the share of time that a plan may take longer than the fastest one.

        Raises:
            AssertionError: the value is not a float.
        """
        require(isinstance(value, float), f"cycleBackOff is {value!r}, not a float.")
        return self

    def __enter__(self) -> MultiConv:
        if blocks.is_tracing():
            if _open:
                raise compiler_error(
                    "Nested poptorch.MultiConv is not supported. Close the outer one first."
                )
            self._first = _num_convolutions()
            _open.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if self in _open:
            _open.remove(self)
            if kind is None:
                num_convolutions = _num_convolutions() - self._first
                if num_convolutions == 0:
                    raise compiler_error(
                        "There is no convolution within this poptorch.MultiConv: it groups those "
                        "that run in its `with` statement. Move convolutions into the `with` "
                        "statement, or leave it out."
                    )
                self._check_lists(num_convolutions)

    def _listed(self, name: str, value: Any) -> list[Any]:
        """Returns values as a list and stores its length; a single value has no length."""
        self._lists.pop(name, None)
        if isinstance(value, (list, tuple)):
            self._lists[name] = len(value)
            return list(value)
        return _optional[name](value)

    def _check_lists(self, num_convolutions: int) -> None:
        for name, length in self._lists.items():
            if length != num_convolutions:
                raise compiler_error(
                    f"MultiConv.{name} was given {length} values for {num_convolutions} "
                    "convolutions. Give one value for all, or one for each."
                )


# Meaning of a single value of each setter; `None` means "not set" where the setter allows it.
_optional: dict[str, Callable[[Any], list[Any]]] = {
    "availableMemoryProportions": lambda value: [1.0] if value is None else [value],
    "partialsTypes": lambda value: [value],
    "enableConvDithering": lambda value: [] if value is None else [value],
}


def _num_convolutions() -> int:
    nodes = current().recorder.graph.operations
    return sum(node.target is _CONVOLUTION for node in nodes)
