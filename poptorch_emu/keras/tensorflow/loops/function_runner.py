"""Runs the functions of a strategy, each captured and compiled once for a kind of arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import keras
import torch

from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.keras.capture.host_values import is_host_tensor, to_torch
from poptorch_emu.keras.capture.integers import check_integers
from poptorch_emu.keras.capture.python_state import PythonState
from poptorch_emu.keras.optimizers.wrapped_optimizers import factor_of_loss
from poptorch_emu.keras.settings.run_settings import SystemSettings, num_replicas
from poptorch_emu.keras.tensorflow.loops.captured_calls import plain_function
from poptorch_emu.keras.tensorflow.loops.discovery import discover
from poptorch_emu.keras.tensorflow.loops.function_module import CapturedFunction
from poptorch_emu.keras.tensorflow.loops.function_program import FunctionProgram, settings_of_update
from poptorch_emu.keras.tensorflow.loops.turns import turn


class FunctionRunner:
    """The compiled programs of functions."""

    def __init__(self, system: Callable[[], SystemSettings]) -> None:
        """Prepares a runner without programs.

        Args:
            system: function that returns the settings of the process's `IPUConfig`.
        """
        self._system = system
        self._programs: dict[Hashable, FunctionProgram] = {}
        self._last: FunctionProgram | None = None

    def last_executor(self) -> PoplarExecutor | None:
        """Returns the executor that ran last; `None` if none did."""
        return None if self._last is None else self._last.executor

    def run(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Runs a function on the IPUs and returns its result; threads take turns."""
        with turn():
            return self._run(plain_function(function), args, kwargs)

    def _run(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        arguments = keras.tree.map_structure(_for_device, (list(args), dict(kwargs)))
        leaves = keras.tree.flatten(arguments)
        system = self._system()
        key = (
            function,
            system,
            str(keras.tree.map_structure(_kind, arguments)),
            *map(_key, leaves),
        )
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._made(function, arguments, system)
        self._last = program
        return program.run([leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)])

    def _made(
        self, function: Callable[..., Any], arguments: Any, system: SystemSettings
    ) -> FunctionProgram:
        replicas = num_replicas(system, None)
        args, kwargs = arguments
        python = PythonState(function, arguments)
        discovered = discover(function, args, kwargs, replicas, python)
        update, factor = discovered.body.update, 1.0
        if update is not None:
            factor = factor_of_loss(settings_of_update(discovered), update.optimizer, replicas)
        module = CapturedFunction(function, arguments, discovered, replicas, python, factor)
        return FunctionProgram(module, system, replicas)


def _for_device(leaf: Any) -> Any:
    """Returns a tensor of PyTorch for a tensor of the host, and any other value unchanged.

    Raises:
        TypeError: the device does not support the type.
    """
    if not is_host_tensor(leaf):
        return leaf
    tensor = to_torch(leaf)
    check_integers(tensor)
    if tensor.dtype is torch.float64:
        raise TypeError(
            "Unsupported data type for input: float64. Convert it with tf.cast(x, tf.float32)."
        )
    return tensor


def _kind(leaf: Any) -> str:
    return type(leaf).__name__


def _key(leaf: Any) -> Hashable:
    """Returns a key that is equal for arguments that can share a program."""
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype
    is_value = isinstance(leaf, (bool, int, float, complex, str, bytes, type(None)))
    return (type(leaf), leaf) if is_value else id(leaf)
