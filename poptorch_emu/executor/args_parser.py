"""Finds the tensors in the arguments of calls, also in types of the user."""

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

# Objects that make batches.
_LOADERS = (torch.utils.data.DataLoader, torch.utils.data.Dataset)

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
    """Binds the arguments of calls to the parameters of `forward` (exact in form).

    A subclass that does not call this constructor accepts any arguments, or binds them in its own
    `__call__`.
    """

    # Defaults for a subclass that reads no signature: any values, by position and by name.
    _ordinary: Sequence[inspect.Parameter] = ()
    _keyword_only: Sequence[inspect.Parameter] = ()
    _rest: str | None = "args"
    _keywords: str | None = "kwargs"

    def __init__(self, model: torch.nn.Module) -> None:
        """Reads the parameters of `model.forward`."""
        super().__init__(model.forward)

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        """Returns the arguments of one call with defaults; `rebuild_with` maps their tensors.

        Raises:
            AssertionError: there are too many arguments, an unknown name, or a duplicate.
            Error: a mandatory argument is missing.
        """
        return self.bind(args, kwargs)


class Call:
    """The arguments of a call, not yet bound to the parameters of `forward`."""

    def __init__(self, parser: ArgsParser, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Stores the arguments as given; `parser` binds them later."""
        self._parser = parser
        self._args = args
        self._kwargs = kwargs

    def bound(self) -> Arguments:
        """Returns the bound arguments.

        Raises:
            AssertionError: there are too many arguments, an unknown name, or a duplicate.
            Error: a mandatory argument is missing, an argument is a loader of batches, or it has no
                values for a device.
        """
        for each in (*self._args, *self._kwargs.values()):
            if isinstance(each, _LOADERS):
                raise _no_batch(each)
        return self._parser(self._args, self._kwargs)

    def tensors_like(self, compiled: Arguments) -> Sequence[torch.Tensor] | None:
        """Returns the tensors of a call if quick checks show that it is like the compiled one.

        Args:
            compiled: arguments of the compilation.

        Returns:
            None if names, containers, constants or a fault need a slower check.
        """
        args = self._args
        is_plain = not self._kwargs and not compiled.named and type(self._parser) is ArgsParser
        if not is_plain or not guards.are_like(compiled.positional, args):
            return None
        # All arguments have one type; the user may have registered a parser for it.
        return args if not args or find_parser(args[0]) is None else None


def _no_batch(given: object) -> Exception:
    """Returns the error for a loader or dataset where tensors of a batch are expected."""
    kind = f"{type(given).__module__.partition('.')[0]}'s {type(given).__name__}"
    return make_error(
        f"Invalid input: {kind} makes batches, but one call takes the tensors of one batch. Make "
        "loader = poptorch.DataLoader(options, dataset, batch_size=...), whose batches have as "
        "many samples as a call takes, and call the model in a loop: for x in loader: model(x)."
    )


def combine_batch_tensors_gen(batches: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yields the tensors of several batches, concatenated along axis 0 (exact).

    Args:
        batches: batches of one structure, which `reconstructTensorStructure` rebuilds.
    """
    for tensors in zip(*map(flatten_tensors, batches), strict=True):
        yield torch.cat(tensors)


def registerCustomArgParser(arg_data_type: type, arg_parser: ICustomArgParser | None) -> None:
    """Registers `arg_parser` for `arg_data_type`; None removes the parser (exact).

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

    The values of a dict are in insertion order, or in that of the equal structure `canonical`.
    """
    return flatten_tensors(x, canonical)


def reconstructTensorStructure(
    structure: Any,
    values: Iterable[torch.Tensor],
    filter_fn: Callable[[torch.Tensor], bool] = lambda _: True,
) -> Any:
    """Returns `structure` with its tensors replaced by `values` (exact).

    Tensors that `filter_fn` does not accept stay.
    """
    return rebuild(structure, iter(values), filter_fn)
