"""Binds the arguments of a call to the parameters of `forward`, and compares calls.

A model is compiled for the arguments of its first call; every later call must have the same
structure, types, shapes and constants.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from poptorch_emu.errors import Error, make_error
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.structure import find_parser, flatten_tensors, rebuild
from poptorch_emu.trace.module_state import fault_of, lack_of
from poptorch_emu.troubleshooting import Topic

_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True)
class Arguments:
    """One call: positional values in the order of `names`, and those that stay named."""

    names: tuple[str, ...]
    positional: tuple[Any, ...]
    named: dict[str, Any]

    def tensors(self, canonical: Arguments | None = None) -> list[torch.Tensor]:
        """Returns every tensor, depth first; `canonical` decides the order within dicts."""
        order = None if canonical is None else (canonical.positional, canonical.named)
        return flatten_tensors((self.positional, self.named), order)

    def has_dict(self) -> bool:
        """Returns whether there is a dict among the values, however deep."""
        return any(_has_dict(value) for value in (*self.positional, *self.named.values()))

    def items(self) -> list[tuple[str, Any]]:
        """Returns each argument with its name."""
        return [*zip(self.names, self.positional, strict=True), *self.named.items()]

    def describe(self) -> str:
        """Returns each argument that holds tensors with their types and shapes."""
        shown = [
            f"{name}: " + ", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors)
            for name, value in self.items()
            if (tensors := flatten_tensors(value))
        ]
        return "; ".join(shown) or "no tensors"

    def rebuild_with(
        self, function: Callable[[torch.Tensor], torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns positional and named values with `function` applied to each tensor."""
        result: tuple[tuple[Any, ...], dict[str, Any]] = rebuild(
            (self.positional, self.named), map(function, self.tensors())
        )
        return result


class Signature:
    """The parameters of a model's `forward`, taken before the model is wrapped."""

    _ordinary: Sequence[inspect.Parameter]
    _keyword_only: Sequence[inspect.Parameter]
    _rest: str | None
    _keywords: str | None

    def __init__(self, forward: Callable[..., Any]) -> None:
        parameters = inspect.signature(forward).parameters.values()
        kinds = inspect.Parameter
        self._ordinary = [
            p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        ]
        self._keyword_only = [p for p in parameters if p.kind is kinds.KEYWORD_ONLY]
        self._rest = next((p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL), None)
        self._keywords = next((p.name for p in parameters if p.kind is kinds.VAR_KEYWORD), None)

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        """Returns the arguments in order, defaults filled in.

        Raises:
            AssertionError: too many arguments, an unknown name, or one given twice.
            Error: a mandatory one is missing, or one has no values that a device could take.
        """
        self._check(args, kwargs)
        kwargs = dict(kwargs)
        names, values = [], []
        for index, parameter in enumerate(self._ordinary):
            names.append(parameter.name)
            if index < len(args):
                assert parameter.name not in kwargs, (
                    f"Parameter {parameter.name} was passed more than once: by position and by name"
                )
                values.append(args[index])
            else:
                values.append(_take(parameter, kwargs))
        rest = args[len(self._ordinary) :]
        names += [f"*{self._rest}[{index}]" for index in range(len(rest))]
        named = {p.name: _take(p, kwargs) for p in self._keyword_only}
        if self._keywords:
            named.update(kwargs)
        arguments = Arguments(tuple(names), (*values, *rest), named)
        _check(arguments, fault_of)
        return arguments

    def _check(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        known = [p.name for p in (*self._ordinary, *self._keyword_only)]
        if self._rest is None and self._keywords is None:
            given = len(args) + len(kwargs)
            assert given <= len(known), (
                f"Too many arguments provided: expected {known} ({len(known)}) but got {given}"
            )
            for name in kwargs:
                assert name in known, (
                    f"{name} is not a valid parameter.Allowed values are {known}"
                    f"{did_you_mean(name, known)}"
                )
        assert len(args) <= len(self._ordinary) or self._rest is not None, (
            f"Too many arguments provided: expected {known} ({len(known)}) but got {len(args)}"
        )


def check_values(arguments: Arguments) -> None:
    """Checks that all tensors of a call have values to compute with.

    Raises:
        Error: one of them is on the meta device.
    """
    _check(arguments, lack_of)


def _check(arguments: Arguments, fault_in: Callable[[torch.Tensor], str]) -> None:
    if not any(map(fault_in, arguments.tensors())):
        return
    for name, value in arguments.items():
        for tensor in flatten_tensors(value):
            if fault := fault_in(tensor):
                raise make_error(f"Invalid input tensor: {name} {fault}")


def _has_dict(value: Any) -> bool:
    if find_parser(value) is not None:
        return False
    if isinstance(value, (list, tuple)):
        return any(_has_dict(item) for item in value)
    return isinstance(value, dict)


def _take(parameter: inspect.Parameter, kwargs: dict[str, Any]) -> Any:
    if parameter.name in kwargs:
        return kwargs.pop(parameter.name)
    if parameter.default is _EMPTY:
        raise make_error(
            f"Mandatory parameter {parameter.name} missing: forward has no default for it. Pass it "
            "by position or by name."
        )
    return parameter.default


def check_same(compiled: Arguments, given: Arguments) -> None:
    """Checks that a call has the arguments the model was compiled for.

    Raises:
        Error: the first difference, with the ways to recompile.
    """
    count, expected = len(given.positional), len(compiled.positional)
    if count != expected:
        raise _mismatch(
            f"Number of positional arguments mismatch: expected {expected} arguments but got "
            f"{count}."
        )
    for name, old, new in zip(compiled.names, compiled.positional, given.positional, strict=True):
        _check_value(name, old, new)
    _check_dict("named arguments", compiled.named, given.named, names_keys=False)


def _check_value(name: str, old: Any, new: Any) -> None:
    if type(old) is not type(new):
        raise _mismatch(f"Type mismatch for {name}: expected {type(old)} but got {type(new)}.")
    if isinstance(old, torch.Tensor):
        _check_tensor(name, old, new)
    elif find_parser(old) is not None or (isinstance(old, list) and flatten_tensors(old)):
        _check_tuple(name, flatten_tensors(old), _in_order(name, old, new))
    elif isinstance(old, tuple):
        _check_tuple(name, old, new)
    elif isinstance(old, dict):
        _check_dict(name, old, new, names_keys=True)
    elif not _is_equal(name, old, new):
        raise _mismatch(f"Value mismatch for {name}: expected {old} but got {new}.")


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


def _check_tuple(name: str, old: Sequence[Any], new: Sequence[Any]) -> None:
    if len(old) != len(new):
        raise _mismatch(
            f"Length mismatch for {name}: expected {len(old)} elements but got {len(new)}."
        )
    for index, (old_item, new_item) in enumerate(zip(old, new, strict=True)):
        _check_value(f"{name}[{index}]", old_item, new_item)


def _check_dict(name: str, old: dict[Any, Any], new: dict[Any, Any], names_keys: bool) -> None:
    if old.keys() != new.keys():
        faults = []
        if extra := [str(key) for key in new if key not in old]:
            faults.append(f"Unexpected arguments: {', '.join(extra)}.")
        if missing := [str(key) for key in old if key not in new]:
            faults.append(f"Missing arguments: {', '.join(missing)}.")
        raise _mismatch(f"Keys mismatch for {name}: {' '.join(faults)}")
    for key, value in old.items():
        _check_value(f"{name}[{key}]" if names_keys else str(key), value, new[key])


def _is_equal(name: str, old: Any, new: Any) -> bool:
    if old is new:
        return True
    if isinstance(old, np.ndarray):
        return old.dtype == new.dtype and np.array_equal(old, new, equal_nan=old.dtype.kind in "fc")
    try:
        # What is not itself, a NaN, stays what it was.
        return bool(old == new) or bool(old != old and new != new)
    except Exception as cause:
        raise _mismatch(
            f"Value mismatch for {name}: two values of type {type(old).__name__} cannot be "
            f"compared ({cause}), so whether it is still the one of the compilation is not known. "
            "Pass tensors, or the same object each time."
        ) from cause


def _mismatch(beginning: str) -> Error:
    return make_error(
        f"{beginning} This error occurred because the inputs passed at runtime don't match the "
        "inputs the model was compiled for. To recompile, wrap the model anew with inferenceModel "
        "or trainingModel, or call destroy() on this one and try again; "
        f"{Topic.CHANGED_INPUTS}"
    )
