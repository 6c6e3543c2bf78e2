"""Block annotations, which assign the operations of a model to blocks.

Outside a trace they do nothing, so that an annotated model runs unchanged in plain PyTorch. The
tracer decides the stage and the IPU of each block.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any, Generic, TypeVar

import torch

from poptorch_emu.errors import make_error, require
from poptorch_emu.trace.places.blocks import (
    BlockStart,
    begin_block,
    end_block,
    is_tracing,
    next_auto_id,
    reset_auto_id,
)

Result = TypeVar("Result")


class Block(torch.nn.Module):
    """Assigns the operations of a `with` statement to one block (exact).

    The block ends with the statement; the next operation must be inside another block.

    Example:
        >>> class Model(torch.nn.Module):
        ...     def forward(self, x):
        ...         with poptorch.Block("first", ipu_id=0):
        ...             x = torch.relu(x)
        ...         with poptorch.Block("second", ipu_id=1):
        ...             return x + 1
        >>> options = poptorch.Options().deviceIterations(2)
        >>> poptorch.inferenceModel(Model(), options)(torch.tensor([-1.0, 4.0]))
        tensor([1., 5.])
    """

    def __init__(self, user_id: str | int | None = None, ipu_id: int | None = None) -> None:
        """Stores the id and the IPU of the block.

        Args:
            user_id: id of the block; an integer stands for its text. By default blocks are
                numbered from "0" in the order of their beginnings.
            ipu_id: index of the IPU, unless the execution strategy sets it.

        Raises:
            AssertionError: `user_id` is not a string or an integer, or `ipu_id` is negative or not
                an integer.
        """
        super().__init__()
        self._user_id, self._ipu_id = _checked(user_id, ipu_id)

    def __enter__(self) -> None:
        """Begins the block."""
        Block.start(self._user_id, self._ipu_id)

    def __exit__(self, *failure: object) -> None:
        """Ends the block."""
        end_block()

    @staticmethod
    def start(user_id: str | int | None = None, ipu_id: int | None = None) -> None:
        """Begins a block that ends when the next block begins (exact)."""
        user_id, ipu_id = _checked(user_id, ipu_id)
        if is_tracing():
            begin_block(_text(user_id) or next_auto_id(), ipu_id)

    @staticmethod
    def useAutoId() -> None:
        """Resets automatic ids to "0"; call it at the start of `forward` (exact)."""
        reset_auto_id()


def _checked(user_id: str | int | None, ipu_id: int | None) -> tuple[str | int | None, int | None]:
    """Returns both arguments, with the IPU as a plain int.

    Raises:
        AssertionError: `user_id` is not a string or an integer, or `ipu_id` is negative or not an
            integer.
    """
    require(
        user_id is None or (isinstance(user_id, (str, int)) and not isinstance(user_id, bool)),
        f"Block IDs are supposed to be strings but got {user_id!r} of type "
        f"{type(user_id).__name__}. Write user_id='{user_id}'.",
    )
    require(
        ipu_id is None or (hasattr(ipu_id, "__index__") and operator.index(ipu_id) >= 0),
        f"ipu_id must be an integer from 0 on, or None, but got {ipu_id!r} of type "
        f"{type(ipu_id).__name__}.",
    )
    return user_id, None if ipu_id is None else operator.index(ipu_id)


def _text(user_id: str | int | None) -> str:
    """Returns the id that stages use for a block; "" if an automatic id is to be chosen."""
    return "" if user_id is None else str(user_id)


class _BlockStart(BlockStart):
    """Begins a block when called. An automatic id is chosen at the first call and kept."""

    def __init__(self, user_id: str | int | None, ipu_id: int | None) -> None:
        self.user_id, self.ipu_id = _checked(user_id, ipu_id)

    def __call__(self, *_: Any) -> None:
        if is_tracing():
            if not _text(self.user_id):
                self.user_id = next_auto_id()
            begin_block(_text(self.user_id), self.ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self.user_id}, ipu_id={self.ipu_id})"


class LegacyBeginBlockFn(torch.nn.Module):
    """Begins a block, then calls a layer or function (exact)."""

    def __init__(
        self,
        layer_to_call: Callable[..., Any],
        user_id: str | int | None = None,
        ipu_id: int | None = None,
    ) -> None:
        """Stores `layer_to_call`; the other arguments are those of `Block`."""
        super().__init__()
        self._layer_to_call = layer_to_call
        self._start = _BlockStart(user_id, ipu_id)

    @property
    def _user_id(self) -> str | int | None:
        """The id of the block; after the first call it is set even if it is automatic."""
        return self._start.user_id

    @property
    def _ipu_id(self) -> int | None:
        return self._start.ipu_id

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Begins the block and returns the result of the layer."""
        self._start()
        return self._layer_to_call(*args, **kwargs)


def BeginBlock(
    layer_to_call: Any, user_id: str | int | None = None, ipu_id: int | None = None
) -> torch.nn.Module:
    """Begins a block each time a layer is called (exact).

    The block ends when the next block begins, which may be after the layer.

    Args:
        layer_to_call: a module or a function.
        user_id: id as for `Block`; an automatic id is fixed when the layer is first traced.
        ipu_id: index of the IPU as for `Block`.

    Returns:
        The same module, or a `LegacyBeginBlockFn` that calls the function or the TorchScript
        module, because TorchScript modules take no hooks.

    Raises:
        Error: `layer_to_call` is neither a module nor a function, or begins a block already.
    """
    is_script = isinstance(layer_to_call, torch.jit.ScriptModule)
    if is_script or not isinstance(layer_to_call, torch.nn.Module):
        if not callable(layer_to_call):
            raise make_error(
                "module is not an instance of torch.nn.Module or function. "
                f"It is {layer_to_call!r} of type {type(layer_to_call).__name__}."
            )
        return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)
    for hook in layer_to_call._forward_pre_hooks.values():
        if isinstance(hook, _BlockStart):
            raise make_error(
                f"module has already been assigned to a block. It is in {hook!r}; call "
                "poptorch.removeBlocks(module) first."
            )
    layer_to_call.register_forward_pre_hook(_BlockStart(user_id, ipu_id))
    return layer_to_call


def removeBlocks(module: torch.nn.Module) -> None:
    """Removes the blocks of `BeginBlock` from a module and all modules inside it (exact).

    Raises:
        AssertionError: `module` is not a module.
    """
    require(
        isinstance(module, torch.nn.Module),
        f"removeBlocks expects a torch.nn.Module, not {module!r}.",
    )
    for inner in module.modules():
        hooks = inner._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, _BlockStart)]:
            del hooks[key]


def BlockFunction(
    user_id: str | int | None = None, ipu_id: int | None = None
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Returns a decorator that runs each call of a function in a block (exact).

    Unlike with PopTorch, the decorated function keeps its name and signature.
    """

    _checked(user_id, ipu_id)
    return lambda function: FunctionInBlock(function, user_id, ipu_id)


class FunctionInBlock(Generic[Result]):
    """A function whose calls each run in a block.

    This is an object because functions are pickled by name alone. The name of a method of one
    model, or of a function that was decorated elsewhere, would lead to the function without its
    block.
    """

    __qualname__: str
    __wrapped__: Callable[..., Result]

    def __init__(
        self, function: Callable[..., Result], user_id: str | int | None, ipu_id: int | None
    ) -> None:
        """Copies name, docstring and signature of `function`."""
        functools.update_wrapper(self, function)
        self._user_id, self._ipu_id = user_id, ipu_id

    def __call__(self, *args: Any, **kwargs: Any) -> Result:
        """Runs the function in its block."""
        with Block(self._user_id, self._ipu_id):
            return self.__wrapped__(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Result]:
        """Binds the function to an instance, as a method."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickles the name if it leads to this object, otherwise the function and its block."""
        found: object = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is self:
            return self.__qualname__
        return FunctionInBlock, (self.__wrapped__, self._user_id, self._ipu_id)
