"""Contexts that prefix the names of operations or attach attributes to operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poptorch_emu.errors import require
from poptorch_emu.ops.attributes import check_attributes
from poptorch_emu.trace.places import scopes


class NameScope:
    """Prefixes the names of the operations that are recorded in the context (exact).

    The name appears in `getTensorNames()`, error messages and reports.

    Args:
        name: prefix; nested scopes are joined by slashes.

    Raises:
        AssertionError: the name is not a string.

    Example:
        >>> class Model(torch.nn.Module):
        ...     def forward(self, x):
        ...         with poptorch.NameScope("head"):
        ...             return torch.relu(x)
        >>> inference = poptorch.inferenceModel(Model())
        >>> _ = inference(torch.ones(2))
        >>> any("head/" in name for name in inference.getTensorNames())
        True
    """

    def __init__(self, name: str) -> None:
        require(isinstance(name, str), "Parameter to NameScope must be a string")
        self._name = name

    def __repr__(self) -> str:
        return f"NameScope({self._name!r})"

    def __enter__(self) -> None:
        scopes.open_name(self._name)

    def __exit__(self, *failure: Any) -> None:
        scopes.close_name()


class Attribute:
    """Attaches attributes to the operations that are recorded in the context (accepted).

    The record of each operation stores them; results do not change. Nested scopes merge.

    Args:
        kwargs: a dictionary for each name, such as `__outline={"layer": "embedding"}`.

    Raises:
        ValueError: a value is not a dictionary, or the dictionary holds anything but numbers,
            strings and lists of them.
    """

    def __init__(self, **kwargs: Mapping[str, Any]) -> None:
        for name, values in kwargs.items():
            if not isinstance(values, Mapping):
                raise ValueError(f"Attribute {name!r} must be a dictionary, not {values!r}.")
            check_attributes(values)
        self._attributes = kwargs

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={values!r}" for name, values in self._attributes.items())
        return f"Attribute({given})"

    def __enter__(self) -> None:
        scopes.open_attributes(self._attributes)

    def __exit__(self, *failure: Any) -> None:
        scopes.close_attributes()
