"""Checks of the arguments of the emulator's functions, before anything is computed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poptorch_emu.errors import make_error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.options import Options
from poptorch_emu.untrusted.files import given_path

# Models of other front ends have a method of this name, which returns the executor that ran last.
LAST_RUN = "_poptorch_emu_last_run"
# Their method of this name calls a function with each executor that trains. It returns a function
# that ends these calls.
FOLLOW = "_poptorch_emu_follow"


def wrapped(model: object) -> PoplarExecutor:
    """Returns the executor that `model` stands for.

    A Keras model stands for the executor that ran last for it, and an `IPUStrategy` for the loop
    that its `run` ran last.

    Raises:
        TypeError: `model` has no executor, or nothing ran yet; the message says what to do.
    """
    last_run = None if isinstance(model, PoplarExecutor) else getattr(model, LAST_RUN, None)
    if last_run is None:
        check_model(model)
        return model  # type: ignore[return-value]
    found = last_run()
    if found is None:
        raise TypeError(
            f"Nothing has run for this {type(model).__name__} yet, or it was compiled anew since. "
            "Call fit, evaluate or predict of the model, or run of the strategy, first."
        )
    check_model(found)
    return found  # type: ignore[no-any-return]


def check_model(model: object) -> None:
    """Checks that a model is wrapped.

    Raises:
        TypeError: the model is not wrapped; the message says how to wrap it.
    """
    if not isinstance(model, PoplarExecutor):
        raise TypeError(
            f"The model must be wrapped, but got {described(model)}. Pass the result of "
            "poptorch.trainingModel(module, options, optimizer) or "
            "poptorch.inferenceModel(module, options)."
        )


def check_options(options: object) -> None:
    """Checks that options are PopTorch's and not frozen.

    Raises:
        AttributeError: the options are frozen.
        TypeError: `options` has another type.
    """
    if not isinstance(options, Options):
        raise TypeError(f"The options must be poptorch.Options(), but got {described(options)}.")
    options._check_unfrozen()


def check_choice(setting: str, choice: object, choices: Sequence[str]) -> None:
    """Checks a choice that is given as a word.

    Raises:
        Error: `choice` is not one of `choices`.
    """
    if choice not in choices:
        raise make_error(
            f"Unknown {setting}: {choice!r}. Choose one of {list(choices)}."
            f"{did_you_mean(choice, choices)}"
        )


def path_and_inputs(
    function: str, name: str, path: str | os.PathLike[str] | None, arguments: tuple[Any, ...]
) -> tuple[Path, tuple[Any, ...]]:
    """Returns the path that a function writes to, and the inputs of a call.

    Args:
        function: name of the function, for the message.
        name: name of its path argument, for the message.
        path: path given by name; if it is `None`, the first argument is the path.
        arguments: arguments given by position after the model.

    Raises:
        TypeError: no path is given, or it is not a path.
        ValueError: the path has a character that no path can contain.
    """
    first: object = path
    if path is None and arguments:
        first, *arguments_left = arguments
        arguments = tuple(arguments_left)
    if not isinstance(first, (str, os.PathLike)) or not os.fspath(first):
        found = "nothing" if first is None else described(first)
        raise TypeError(
            f"emulator.{function} needs a path, but got {found} in its place. Give it first, as in "
            f"{function}(model, path, *inputs), or by its name: "
            f"{function}(model, *inputs, {name}=...)."
        )
    return given_path(first, name), arguments


def described(value: object) -> str:
    """Returns a description of a value, for a message."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    is_short = isinstance(value, (str, bytes, int, float))
    return f"{value!r} of type {name}" if is_short else f"a value of type {name}"
