"""Teaches the package how to find the tensors in a type of the user's."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.runtime import guards
from poptorch_emu.runtime.arguments import Arguments, Signature
from poptorch_emu.structure import (
    ICustomArgParser,
    find_parser,
    flatten_tensors,
    rebuild,
    register_parser,
)

__all__ = [
    "ArgsParser",
    "ICustomArgParser",
    "combine_batch_tensors_gen",
    "flattenTensorStructure",
    "reconstructTensorStructure",
    "registerCustomArgParser",
    "registerGeometricCustomArgParsers",
]


class ArgsParser(Signature):
    """Brings the arguments of calls of a model into the order of its `forward` (exact in form).

    A subclass that does not call this constructor takes arguments as they are given, or brings
    them into order in its own `__call__`.
    """

    # Of a subclass that reads no signature: any values, by position and by name.
    _ordinary: Sequence[inspect.Parameter] = ()
    _keyword_only: Sequence[inspect.Parameter] = ()
    _rest: str | None = "args"
    _keywords: str | None = "kwargs"

    def __init__(self, model: torch.nn.Module) -> None:
        """Reads the parameters of `model.forward`."""
        super().__init__(model.forward)

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        """Returns the arguments of one call, defaults filled in; `rebuild_with` maps its tensors.

        Raises:
            AssertionError: too many arguments, an unknown name, or one given twice.
            Error: a mandatory one is missing.
        """
        return self.bind(args, kwargs)


class Call:
    """What a model was called with, before it is brought into the order of `forward`."""

    def __init__(self, parser: ArgsParser, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Takes the arguments as they were given; `parser` brings them into order."""
        self._parser = parser
        self._args = args
        self._kwargs = kwargs

    def bound(self) -> Arguments:
        """Returns the arguments in order.

        Raises:
            AssertionError: too many arguments, an unknown name, or one given twice.
            Error: a mandatory one is missing, or one has no values that a device could take.
        """
        return self._parser(self._args, self._kwargs)

    def tensors_like(self, compiled: Arguments) -> Sequence[torch.Tensor] | None:
        """Returns the tensors of a call, if guards alone show that it is like the compiled one.

        Args:
            compiled: of the call for which the model was compiled.

        Returns:
            `None` where more has to be looked at: names, containers, constants, or a fault.
        """
        args = self._args
        is_plain = not self._kwargs and not compiled.named and type(self._parser) is ArgsParser
        if not is_plain or not guards.are_like(compiled.positional, args):
            return None
        # All are of one type, which the user may have a parser for.
        return args if not args or find_parser(args[0]) is None else None


def combine_batch_tensors_gen(batches: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yields the tensors of one large batch: those of several batches, joined along axis 0 (exact).

    Args:
        batches: of one structure; `reconstructTensorStructure` makes one of what is yielded.
    """
    for tensors in zip(*map(flatten_tensors, batches), strict=True):
        yield torch.cat(tensors)


def registerCustomArgParser(arg_data_type: type, arg_parser: ICustomArgParser | None) -> None:
    """Makes `arg_parser` responsible for `arg_data_type`; `None` forgets the type (exact).

    Raises:
        Error: `arg_parser` is not an `ICustomArgParser`.
    """
    if arg_parser is not None and not isinstance(arg_parser, ICustomArgParser):
        raise make_error(
            f"arg_parser must inherit from ICustomArgParser, but it is of type {type(arg_parser)}. "
            "Derive its class from poptorch.ICustomArgParser, or pass None to remove a parser."
        )
    register_parser(arg_data_type, arg_parser)


def registerGeometricCustomArgParsers() -> None:
    """Registers the parsers of `poptorch_geometric` if that package is installed (exact)."""
    if importlib.util.find_spec("poptorch_geometric") is None:
        return
    if importlib.util.find_spec("poptorch_geometric.types") is not None:
        importlib.import_module("poptorch_geometric.types")


def flattenTensorStructure(x: Any, canonical: Any = None) -> list[torch.Tensor]:
    """Returns every tensor in a structure, depth first (exact).

    Dicts go in insertion order, or in that of the equal structure `canonical`.
    """
    return flatten_tensors(x, canonical)


def reconstructTensorStructure(
    structure: Any,
    values: Iterable[torch.Tensor],
    filter_fn: Callable[[torch.Tensor], bool] = lambda _: True,
) -> Any:
    """Returns `structure` with its tensors replaced by `values` (exact).

    Those that `filter_fn` does not accept stay.
    """
    return rebuild(structure, iter(values), filter_fn)
