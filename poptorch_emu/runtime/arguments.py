"""Binds the arguments of a call to the parameters of `forward`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.structure import find_parser, flatten_tensors, rebuild, snapshot
from poptorch_emu.trace.model_state.module_state import fault_of, lack_of

_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call: positional values in the order of `names`, and named values.

    Attributes:
        names: names of the positional values, in the order of `forward`.
        positional: values of the parameters in `names`, with defaults filled in.
        named: values of parameters that have no position.
        unset: names of parameters that keep their defaults.
        by_name: names of parameters with a position that were passed by name.
    """

    names: tuple[str, ...]
    positional: tuple[Any, ...]
    named: dict[str, Any]
    unset: frozenset[str] = frozenset()
    by_name: frozenset[str] = frozenset()

    def tensors(self, canonical: Arguments | None = None) -> list[torch.Tensor]:
        """Returns all tensors, depth first; dicts have the order of those in `canonical`."""
        order = None if canonical is None else (canonical.positional, canonical.named)
        return flatten_tensors((self.positional, self.named), order)

    def has_dict(self) -> bool:
        """Returns whether any value is or contains a dict."""
        return any(_has_dict(value) for value in (*self.positional, *self.named.values()))

    def items(self) -> list[tuple[str, Any]]:
        """Returns each argument with its name."""
        return [*zip(self.names, self.positional, strict=True), *self.named.items()]

    def describe(self) -> str:
        """Returns the arguments that contain tensors, with the types and shapes of these."""
        shown = [
            f"{name}: " + ", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors)
            for name, value in self.items()
            if (tensors := flatten_tensors(value))
        ]
        return "; ".join(shown) or "no tensors"

    def kept(self) -> Arguments:
        """Returns a copy that is safe from changes of the caller's containers and objects."""
        positional, named = snapshot((self.positional, self.named))
        return replace(self, positional=positional, named=named)

    def rebuild_with(
        self, function: Callable[[torch.Tensor], torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments as they were passed, with `function` applied to each tensor.

        Arguments that were passed by name stay named, and defaults stay unset, because decorators
        of `forward` may depend on it.
        """
        positional, named = rebuild((self.positional, self.named), map(function, self.tensors()))
        given = dict(zip(self.names, positional, strict=True))
        apart = self.unset | self.by_name
        by_name = {name: given[name] for name in self.names if name in self.by_name}
        by_name |= {name: value for name, value in named.items() if name not in self.unset}
        return tuple(value for name, value in given.items() if name not in apart), by_name

    def copied(self) -> Arguments:
        """Returns the same arguments with a copy of each tensor."""
        copies = (tensor.detach().clone() for tensor in self.tensors())
        positional, named = rebuild((self.positional, self.named), copies)
        return replace(self, positional=positional, named=named)


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
        """Returns the arguments in order, with defaults filled in.

        Raises:
            AssertionError: there are too many arguments, or a name is unknown or given twice.
            Error: a mandatory argument is missing, or a tensor has no values that a device could
                read.
        """
        self._check(args, kwargs)
        given, kwargs = kwargs, dict(kwargs)
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
        late = self._ordinary[len(args) :]
        unset = {p.name for p in (*late, *self._keyword_only) if _is_left_unset(p, given)}
        by_name = {p.name for p in late} - unset
        arguments = Arguments(
            tuple(names), (*values, *rest), named, frozenset(unset), frozenset(by_name)
        )
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
    """Checks that all tensors of a call have values.

    Raises:
        Error: a tensor is on the meta device.
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


def _is_left_unset(parameter: inspect.Parameter, given: dict[str, Any]) -> bool:
    """Returns whether a parameter keeps its default; one with tensors becomes an input."""
    return parameter.name not in given and not flatten_tensors(parameter.default)
