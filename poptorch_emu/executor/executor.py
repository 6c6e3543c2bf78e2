"""`PoplarExecutor`: a wrapped model, its life and the moments when weights move."""

from __future__ import annotations

import datetime
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from poptorch_emu.compile.compiler import STEPS, MakeExecutable, Request, compile_model
from poptorch_emu.compile.executable import Executable
from poptorch_emu.compile.limits import check_batches
from poptorch_emu.config import CompileConfig
from poptorch_emu.enums import OutputMode
from poptorch_emu.errors import make_error
from poptorch_emu.executor import wrapping
from poptorch_emu.executor.args_parser import ArgsParser
from poptorch_emu.executor.attachment import Attachment
from poptorch_emu.executor.executor_state import one_at_a_time
from poptorch_emu.executor.hooks import (
    _OverwriteContextManager as _OverwriteContextManager,  # Programs reach for it here.
)
from poptorch_emu.executor.hooks import run_post_compile_hooks, run_pre_compile_hooks
from poptorch_emu.executor.inspection import Inspection
from poptorch_emu.executor.measurement import NO_SPANS
from poptorch_emu.executor.module_repr import module_repr
from poptorch_emu.executor.random_state import RandomState
from poptorch_emu.executor.replica_grouping import ReplicaGroupings, Triple
from poptorch_emu.executor.saving import load_executable, save_executable
from poptorch_emu.executor.synced_tensors import Link
from poptorch_emu.log import logger, start_repeats
from poptorch_emu.optim.device_state import OptimizerLink
from poptorch_emu.optim.differences import warn_of_defaults
from poptorch_emu.options import Options
from poptorch_emu.options.forced import warn_about_forced
from poptorch_emu.options.freeze import freeze
from poptorch_emu.report.out_of_memory import check_memory
from poptorch_emu.runtime.arguments import Arguments, check_same
from poptorch_emu.runtime.devices import Device
from poptorch_emu.runtime.outputs import without_backward
from poptorch_emu.runtime.progress import progress_bar
from poptorch_emu.runtime.session import Session
from poptorch_emu.runtime.stream import ResultStream


class PoplarExecutor(Attachment, RandomState, Inspection):
    """A model that runs on virtual IPUs (exact).

    Made by `trainingModel` and `inferenceModel`. Attributes that it does not have itself are those
    of the user's model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        options: Options | None,
        training: bool,
        optimizer: torch.optim.Optimizer | None = None,
        user_model: torch.nn.Module | None = None,
        poptorch_version: str | None = None,
    ) -> None:
        """Prepares the wrapper; nothing is compiled before the first call or `compile`.

        Args:
            model: the module that is traced.
            options: frozen by this; a default `Options` if `None`.
            training: whether calls train.
            optimizer: for training.
            user_model: the module whose weights are trained, if it is another object.
            poptorch_version: accepted.
        """
        options = options or Options()
        if not isinstance(options, Options):
            raise make_error(
                f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options)"
            )
        options._freeze()
        self._options = options.clone()
        self._model = model
        self._user_model = model if user_model is None else user_model
        self._training = training
        self._args_parser = ArgsParser(model)
        self._executable: Executable | None = None
        self._session: Session | None = None
        self._arguments: Arguments | None = None
        self._host_is_stale = False
        self._groupings = ReplicaGroupings()
        self._link = Link(self)
        self._turn = self._turn_beside_partners()
        self._partners: weakref.WeakSet[PoplarExecutor] = weakref.WeakSet()
        self._outdated: set[str] = set()
        self._seen_versions: dict[Link, int] = {}
        self._links: list[Link] = []
        self._links_are_of = -1
        self._compilation_time: datetime.timedelta | None = None
        self._num_compilations = 0
        self._has_warned_about_strides = False
        self._device: Device | None = None
        self._rng_state: list[int] | None = None
        self._anchored: dict[str, torch.Tensor] = {}
        self._spans = NO_SPANS
        self._end_profile: Callable[[], object] = lambda: None
        if self._options.defaultOutputMode():
            self._options.outputMode(OutputMode.Final if training else OutputMode.All)
        self._optimizer_link = OptimizerLink(optimizer, self._options) if training else None
        self._options._freeze()
        self._wrap_user_model()

    @one_at_a_time
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model on a whole batch, after compiling it at the first call (exact).

        Returns:
            What `forward` returns, as tensors on the CPU, gathered by the output mode.

        Raises:
            Error: the arguments are not those the model was compiled for, or the device failed.
        """
        arguments, session = self._ready(args, kwargs)
        if self._training:
            # Before the run: one that fails later on may have trained already.
            self._host_is_stale = True
        outputs = session.run(arguments.tensors(self._arguments))
        self._anchored = session.anchored
        return without_backward(outputs, self._compiled().host_outputs.values())

    @one_at_a_time
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles for these arguments without running (exact)."""
        arguments = self._args_parser(args, kwargs)
        self._warn_about_strides(arguments)
        if self._executable is not None:
            logger.warning("Call to compile() ignored: the executable is already compiled")
            return
        self._compile(arguments)

    def compileAndExport(
        self, filename: str | Path, *args: Any, export_model: bool = True, **kwargs: Any
    ) -> None:
        """Compiles for these arguments and saves the result (exact); see `save`."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    @one_at_a_time
    def save(
        self, filename: str | Path, export_model: bool = True, save_rng_state: bool = True
    ) -> None:
        """Saves what was compiled, for `poptorch.load` and `loadExecutable` (exact).

        The program is saved as data; the model, options and optimiser as pickles of PyTorch.
        """
        save_executable(self, filename, export_model, save_rng_state)

    @one_at_a_time
    def loadExecutable(self, filename: str | Path) -> None:
        """Takes what was compiled from a file; the model is traced again, not compiled (exact).

        The saved inputs are unpickled, which can run code: load only files that you trust.
        """
        load_executable(self, filename)

    def isCompiled(self) -> bool:
        """Returns whether the model has been compiled (exact)."""
        return self._executable is not None

    @one_at_a_time
    def destroy(self) -> None:
        """Releases the device and drops what was compiled; weights come back first (exact)."""
        if self._executable is None:
            return
        self._detach()
        self._executable = None
        self._arguments = None
        self._spans = NO_SPANS
        self._rng_state = None
        if self._optimizer_link is not None:
            self._optimizer_link.forget()
        if self._training:
            wrapping.unwrap(self._user_model, self._link)

    @one_at_a_time
    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Replaces the optimiser, or sends changed values of the same one (exact).

        Takes effect from the next call. Constant values, and the class, cannot change.
        """
        if self._optimizer_link is None:
            raise AttributeError(
                "setOptimizer was called on an inference model, which has no optimizer."
            )
        self._optimizer_link.replace(optimizer, self._session)

    @property
    def model(self) -> torch.nn.Module:
        """The user's model."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The wrapper's own frozen options."""
        return self._options

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the user's model.

        Before the compilation a parameter has the method `replicaGrouping`.
        """
        if name.startswith("__") or "_user_model" not in self.__dict__:
            raise AttributeError(name)
        value = getattr(self._user_model, name)
        if self._executable is None:
            self._groupings.offer(name, value)
        return value

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    def _ready(self, args: Any, kwargs: Any) -> tuple[Arguments, Session]:
        """Does everything that comes before a run of the engine."""
        assert not self._is_offline, (
            "Trying to run a model on an offline device (ConnectionType.Never): only "
            "`model.compile(inputs)` is possible. Choose another connection type to run."
        )
        arguments = self._args_parser(args, kwargs)
        self._warn_about_strides(arguments)
        if self._executable is None:
            self._compile(arguments)
        if self._session is None:
            self._attach()
        assert self._arguments is not None and self._session is not None
        check_same(self._arguments, arguments)
        self._refresh_weights()
        if self._optimizer_link is not None:
            self._optimizer_link.send_if_dirty(self._session)
        return arguments, self._session

    @one_at_a_time
    def _stream(self, args: Any, kwargs: Any, max_unread: int) -> ResultStream:
        """Begins a call whose results are read while it runs."""
        arguments, session = self._ready(args, kwargs)
        if self._training:
            self._host_is_stale = True
        self._anchored = session.anchored
        return session.stream(arguments.tensors(self._arguments), max_unread)

    def _wrap_user_model(self) -> None:
        """Wraps the user's model for training, at first and when it is compiled after `destroy`."""
        if not self._training:
            return
        if wrapping.link_of(self._user_model) not in (None, self._link):
            raise RuntimeError(
                "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() "
                "on the other wrapper before this one is compiled again."
            )
        wrapping.wrap(self._user_model, self._link)

    @property
    def per_replica_params(self) -> dict[str, Triple]:
        """What `replicaGrouping` was given, by the parameter's name."""
        return self._groupings.triples

    def _config(self) -> CompileConfig:
        self._groupings.withdraw(self._user_model)
        groups = self._groupings.weight_groups(self._user_model, self._options.replication_factor)
        return freeze(self._options, is_training=self._training, weight_groups=groups)

    def _compile(self, arguments: Arguments, make: MakeExecutable = compile_model) -> None:
        self._wrap_user_model()
        if arguments.has_dict():
            logger.warning(
                "Dicts as inputs only have partial support: looking up a literal key works, other "
                "uses of a dict may not. A tuple is the better choice."
            )
        start = time.perf_counter()
        self._num_compilations += 1
        logger.info(
            "Compilation %d of %s, for %s",
            self._num_compilations,
            type(self._user_model).__name__,
            arguments.describe(),
        )
        config = self._config()
        self._check_updatable_buffers()
        check_batches(arguments.tensors(), config)
        parameters = dict(self._user_model.named_parameters())
        optimizer = self._optimizer_link.config(parameters) if self._optimizer_link else None
        request = Request(
            model=self._model,
            arguments=arguments.rebuild_with,
            tensors=arguments.tensors(),
            config=config,
            optimizer=optimizer,
            parameters=tuple(parameters),
            hooks=(run_pre_compile_hooks, run_post_compile_hooks),
        )
        start_repeats(config.max_repeat_logs)
        with (
            progress_bar(STEPS, config.shows_progress_bar) as on_step,
            wrapping.settled(self._user_model),
        ):
            executable = make(request, on_step)
        check_memory(executable, self._profile_folder(config))
        self._executable = executable
        warn_about_forced(self._options, self._executable)
        if optimizer is not None:
            warn_of_defaults(optimizer, parameters, self._executable)
        if config.shows_progress_bar:
            self._compilation_time = datetime.timedelta(seconds=time.perf_counter() - start)
        self._arguments = arguments
        if not self._is_offline:
            self._attach_compiled()

    def _warn_about_strides(self, arguments: Arguments) -> None:
        if self._has_warned_about_strides:
            return
        if not all(tensor.is_contiguous() for tensor in arguments.tensors()):
            logger.warning(
                "At least one input tensor is not contiguous: it is copied at every call. Make "
                "inputs contiguous to avoid that."
            )
            self._has_warned_about_strides = True
