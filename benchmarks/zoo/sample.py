"""A model of a library with the arguments of one call, and the interface of libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch


class NoSampleError(Exception):
    """No tiny configuration, or no arguments for it, could be found; the text says why."""


@dataclass(frozen=True)
class Sample:
    """A module with random weights, and the arguments of one call.

    Attributes:
        module: module in evaluation mode.
        args: positional arguments.
        kwargs: arguments by name.
    """

    module: torch.nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Library:
    """The models of one library.

    Attributes:
        names: function that returns the name of each model.
        make: function that returns the sample for a name, or raises if it finds none.
    """

    names: Callable[[], list[str]]
    make: Callable[[str], Sample]


def first_that_runs(
    module: torch.nn.Module, calls: list[tuple[Any, ...] | dict[str, Any]]
) -> Sample:
    """Returns a sample with the first of several sets of arguments that PyTorch runs.

    Raises:
        NoSampleError: PyTorch runs none of them; the text is that of the first failure, or
            of the first that names no missing argument.
    """
    module.eval()
    failure: Exception | None = None
    for call in calls:
        by_name = isinstance(call, dict)
        sample = Sample(module, () if by_name else call, call if by_name else {})  # type: ignore[arg-type]
        try:
            with torch.no_grad():
                module(*sample.args, **sample.kwargs)
            return sample
        except Exception as error:
            is_clearer = failure is None or "missing" in str(failure)
            failure = error if is_clearer else failure
    raise NoSampleError(f"{type(failure).__name__}: {failure}")


def tensors_in(value: Any, seen: set[int] | None = None) -> list[torch.Tensor]:
    """Returns the tensors in a result in order, also those within objects of any class."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        return [value]
    if id(value) in seen or isinstance(value, (str, bytes, int, float, type, torch.nn.Module)):
        return []
    seen.add(id(value))
    if isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, (list, tuple)):
        inner = list(value)
    elif is_dataclass(value) or hasattr(value, "__dict__"):
        inner = list(vars(value).values())
    else:
        inner = []
    return [tensor for item in inner for tensor in tensors_in(item, seen)]
