"""Compares the arguments of a call with those of the compilation.

Each later call must have the structure, types, shapes and constants of the first one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from poptorch_emu.errors import Error, make_error
from poptorch_emu.object_parts import context_of, is_registered, parts_of
from poptorch_emu.runtime.arguments import Arguments
from poptorch_emu.structure import find_parser, flatten_tensors, items_of
from poptorch_emu.troubleshooting import Topic


def check_same(compiled: Arguments, given: Arguments) -> None:
    """Checks that a call has the arguments of the compilation.

    Raises:
        Error: the arguments differ; the message has the first difference and ways to recompile.
    """
    count, expected = len(given.positional), len(compiled.positional)
    if count != expected:
        raise _mismatch(
            f"Number of positional arguments mismatch: expected {expected} arguments but got "
            f"{count}."
        )
    comparison = _Comparison()
    for name, old, new in zip(compiled.names, compiled.positional, given.positional, strict=True):
        comparison.values(name, old, new)
    comparison.dicts("named arguments", compiled.named, given.named, str)


class _Comparison:
    """One comparison; an object that occurs twice in one call must occur twice in the other."""

    def __init__(self) -> None:
        self._twins: dict[int, Any] = {}

    def values(self, name: str, old: Any, new: Any) -> None:
        """Compares two values, and the parts of containers and objects."""
        if type(old) is not type(new):
            raise _mismatch(f"Type mismatch for {name}: expected {type(old)} but got {type(new)}.")
        if isinstance(old, torch.Tensor):
            _check_tensor(name, old, new)
        elif find_parser(old) is not None:
            self._rows(name, flatten_tensors(old), _in_order(name, old, new))
        elif isinstance(old, tuple) or (isinstance(old, list) and _has_parts(old)):
            self._rows(name, old, new)
        elif isinstance(old, dict):
            self.dicts(name, old, new, lambda key: f"{name}[{key}]")
        elif isinstance(old, weakref.ref):
            self.values(name, old(), new())
        elif not isinstance(old, list) and (parts := parts_of(old)) is not None:
            self._objects(name, old, parts, new)
        elif not _is_equal(name, old, new):
            raise _mismatch(f"Value mismatch for {name}: expected {old} but got {new}.")

    def dicts(
        self,
        name: str,
        old: Mapping[Any, Any],
        new: Mapping[Any, Any],
        name_of: Callable[[Any], str],
    ) -> None:
        """Compares two dicts; `name_of` returns the name of an item from its key."""
        if old.keys() != new.keys():
            faults = []
            if extra := [str(key) for key in new if key not in old]:
                faults.append(f"Unexpected arguments: {', '.join(extra)}.")
            if missing := [str(key) for key in old if key not in new]:
                faults.append(f"Missing arguments: {', '.join(missing)}.")
            raise _mismatch(f"Keys mismatch for {name}: {' '.join(faults)}")
        for key, value in old.items():
            self.values(name_of(key), value, new[key])

    def _rows(self, name: str, old: Sequence[Any], new: Sequence[Any]) -> None:
        if len(old) != len(new):
            raise _mismatch(
                f"Length mismatch for {name}: expected {len(old)} elements but got {len(new)}."
            )
        for index, (old_item, new_item) in enumerate(zip(old, new, strict=True)):
            self.values(f"{name}[{index}]", old_item, new_item)

    def _objects(self, name: str, old: Any, parts: Mapping[Any, Any], new: Any) -> None:
        if self._twins.get(id(old), new) is not new or self._twins.get(id(new), old) is not old:
            raise _mismatch(
                f"Value mismatch for {name}: the same object of type {type(old).__name__} was "
                "passed in several places, and now there are several objects, or the reverse."
            )
        if id(old) in self._twins:
            return
        self._twins |= {id(old): new, id(new): old}
        other = parts_of(new)
        assert other is not None, "both are of one type"
        is_row = is_registered(old)
        self.dicts(name, parts, other, lambda key: f"{name}[{key}]" if is_row else f"{name}.{key}")
        if is_row and not _is_equal(name, context_of(old), context_of(new)):
            raise _mismatch(f"Value mismatch for {name}: expected {old} but got {new}.")


def _has_parts(values: list[Any]) -> bool:
    """Returns whether a list contains anything except constants."""
    return any(isinstance(each, torch.Tensor) or items_of(each) is not None for each in values)


def _in_order(name: str, old: Any, new: Any) -> list[torch.Tensor]:
    """Returns the tensors of `new` in the order of those of `old`."""
    try:
        return flatten_tensors(new, old)
    except (LookupError, TypeError):
        tensors = flatten_tensors(new)
        if len(tensors) != len(flatten_tensors(old)):
            return tensors
        raise _mismatch(f"Keys mismatch for {name}: the containers within it differ.") from None


def _check_tensor(name: str, old: torch.Tensor, new: torch.Tensor) -> None:
    if old.dtype != new.dtype:
        raise _mismatch(f"Data type mismatch for {name}: expected {old.dtype} but got {new.dtype}.")
    if old.shape != new.shape:
        is_rest = new.shape[:1] < old.shape[:1] and new.shape[1:] == old.shape[1:]
        hint = " Of a loader, drop_last=True leaves out a smaller last batch." if is_rest else ""
        raise _mismatch(
            f"Shape mismatch for {name}: expected {old.shape} but got {new.shape}.{hint}"
        )


def _is_equal(name: str, old: Any, new: Any) -> bool:
    if old is new:
        return True
    if isinstance(old, np.ndarray):
        return old.dtype == new.dtype and np.array_equal(old, new, equal_nan=old.dtype.kind in "fc")
    try:
        # Two NaN values count as equal.
        return bool(old == new) or bool(old != old and new != new)
    except Exception as cause:
        raise _mismatch(
            f"Value mismatch for {name}: two values of type {type(old).__name__} cannot be "
            f"compared ({cause}), so it is not known whether the value is still that of the "
            "compilation. Pass tensors, or the same object in each call."
        ) from cause


def _mismatch(beginning: str) -> Error:
    return make_error(
        f"{beginning} This error occurred because the inputs passed at runtime don't match the "
        "inputs the model was compiled for. To recompile, wrap the model anew with inferenceModel "
        "or trainingModel, or call destroy() on this one and try again; "
        f"{Topic.CHANGED_INPUTS}"
    )
