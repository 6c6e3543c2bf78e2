"""`IPUStrategy`: models built in its scope, and functions that it runs, are on virtual IPUs."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import keras

from poptorch_emu.distributed.launch_environment import read_launch
from poptorch_emu.emulator.given_values import LAST_RUN
from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.capture_state import current, is_suspended
from poptorch_emu.keras.capture.host_values import tensorflow
from poptorch_emu.keras.capture.symbolic_values import current_graph
from poptorch_emu.keras.ipu import tensorflow_1
from poptorch_emu.keras.ipu.config import system_settings
from poptorch_emu.keras.keras_2 import old_files
from poptorch_emu.keras.replacement import replaced_functions
from poptorch_emu.keras.tensorflow.loops.function_runner import FunctionRunner
from poptorch_emu.keras.tensorflow.loops.infeed import Infeed
from poptorch_emu.keras.training.model_methods import IpuModelMethods
from poptorch_emu.options import Options

__all__ = ["IPUStrategy", "IPUStrategyV1"]

# Loaded late, because this module imports TensorFlow.
_OPERATIONS = "poptorch_emu.keras.ipu.ops"
_BOUNDARY = "poptorch_emu.keras.tensorflow.functions.boundary"


class IPUStrategy:
    """Makes models of Keras and functions run on virtual IPUs (exact).

    Attributes:
        num_replicas_in_sync: always 1, because the device itself handles replicas.
    """

    num_replicas_in_sync = 1
    _is_of_processes = False

    def __new__(cls, *args: Any, **kwargs: Any) -> IPUStrategy:
        """Creates an instance that is also a TensorFlow strategy, if TensorFlow is loaded."""
        tf = tensorflow()
        kind: Any = cls
        found: IPUStrategy = super().__new__(kind if tf is None else _of_tensorflow(kind, tf))
        return found

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        """Uses the IPUs of the process's `IPUConfig`.

        Args:
            ipu_device: the first device, which is the only one.
            cpu_device: accepted.
            enable_dataset_iterators: whether only the device reads the iterators over TensorFlow
                data sets that are created in the scope.
            enable_keras_extensions: accepted.

        Raises:
            ValueError: the program runs in several processes, or the device is another one.
        """
        if not str(ipu_device).upper().endswith("IPU:0"):
            raise ValueError(
                f"IPUStrategy(ipu_device={ipu_device!r}): one process has one device. Leave it at "
                "'/device:IPU:0'."
            )
        processes = max(Options().Distributed.numProcesses, read_launch().num_instances)
        if processes > 1 and not self._is_of_processes:
            raise ValueError(
                f"This is one of {processes} processes, but IPUStrategy runs in one. Use several "
                "replicas in one process, IPUConfig.auto_select_ipus, or PopDistStrategy of "
                "ipu.distributed.popdist_strategy."
            )
        join_tensorflow()
        self._has_infeeds = enable_dataset_iterators
        self._runner = FunctionRunner(system_settings)
        vars(self)[LAST_RUN] = self._runner.last_executor

    @contextmanager
    def scope(self) -> Iterator[IPUStrategy]:
        """Returns a context: models that are built or loaded inside run on IPUs (exact)."""
        tf = tensorflow()
        with ExitStack() as stack:
            stack.enter_context(replaced_functions(keras.Model, __init__=_build_for_ipus))
            if tf is not None:
                names = {"get_strategy": lambda _: self, "has_strategy": lambda _: True}
                stack.enter_context(replaced_functions(tf.distribute, **names))
                if self._has_infeeds:
                    stack.enter_context(
                        replaced_functions(tf.data.Dataset, __iter__=_iterate_on_device)
                    )
            yield self

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Runs a function on all replicas, and returns the result of one replica (exact).

        The function is captured once for the shapes and types of tensors and the values of other
        arguments. Loops in it that read an iterator, send to an `IPUOutfeedQueue` or apply
        gradients run as iterations on the device.

        Args:
            fn: Python function, or a function of `tf.function`.
            args: positional arguments of the function.
            kwargs: keyword arguments of the function.
            options: accepted.

        Raises:
            Error: a device cannot run the function; the message names the line and the way out.
            TypeError: a device does not support the type of an argument.
        """
        tf = tensorflow()
        if tf is not None and not tf.executing_eagerly() and current_graph() is None:
            raise compiler_error(
                "strategy.run is called while TensorFlow builds a graph (in a tf.function, or in "
                "a function that Dataset.map takes), which would keep the result of one run for "
                "ever. Call strategy.run outside of it: take @tf.function off the caller."
            )
        return self._runner.run(fn, args, kwargs or {})

    def experimental_run_v2(self, *args: Any, **kwargs: Any) -> None:
        """Raises an error, because the name is obsolete (refused).

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("IPUStrategy.experimental_run_v2 is gone. Use run.")


def join_tensorflow() -> None:
    """Lets TensorFlow and Keras take each other's values, if the program uses TensorFlow."""
    tf = tensorflow()
    if tf is not None:
        operations = importlib.import_module(_OPERATIONS)
        modules = [getattr(operations, name) for name in operations.__all__]
        importlib.import_module(_BOUNDARY).install(*modules)
        old_files.refuse_saved_models(tf)
        tensorflow_1.refuse(tf)


@functools.cache
def _of_tensorflow(kind: Any, tf: Any) -> type:
    """Returns a subclass of a strategy that is also a `tf.distribute.Strategy`."""
    own = {"__module__": kind.__module__, "_extended": property(_no_other_methods)}
    return type(kind.__name__, (kind, tf.distribute.Strategy), own)


def _no_other_methods(strategy: Any) -> NoReturn:
    raise AttributeError(
        f"{type(strategy).__name__} has scope, run and num_replicas_in_sync, but no other methods "
        "of tf.distribute.Strategy, because the device itself has the replicas. Leave the call "
        "out: run returns the values of one replica, and takes data sets as they are."
    )


_ROOM = str(Path(__file__).parent.parent)

IPUStrategyV1 = IPUStrategy


def _build_for_ipus(build: Callable[..., None], model: Any, *args: Any, **kwargs: Any) -> None:
    build(model, *args, **kwargs)
    IpuModelMethods(model, system_settings).put_on()


def _iterate_on_device(iterate: Callable[[Any], Any], dataset: Any) -> Any:
    """Returns an iterator of the device for one of the program, as opposed to its libraries."""
    libraries = tuple(str(Path(each.__file__).parent) for each in (tensorflow(), keras))
    if current() is not None or is_suspended() or _asking_file().startswith(libraries):
        return iterate(dataset)
    return Infeed(dataset)


def _asking_file() -> str:
    """Returns the file of the innermost function outside of this package of the front end."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_ROOM):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_code.co_filename
