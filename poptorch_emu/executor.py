"""`PoplarExecutor`: a wrapped model, its life and the moments when weights move."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from poptorch_emu import wrapping
from poptorch_emu.compile.compiler import STEPS, MakeExecutable, Request, compile_model
from poptorch_emu.compile.executable import Executable
from poptorch_emu.compile.limits import check_batches
from poptorch_emu.config import CompileConfig
from poptorch_emu.enums import ConnectionType, OutputMode
from poptorch_emu.errors import make_error
from poptorch_emu.hooks import run_post_compile_hooks, run_pre_compile_hooks
from poptorch_emu.log import logger
from poptorch_emu.module_repr import module_repr
from poptorch_emu.optim.device_state import OptimizerLink
from poptorch_emu.options import Options
from poptorch_emu.options.freeze import freeze
from poptorch_emu.report.profile import write_profile
from poptorch_emu.runtime.arguments import Arguments, Signature, check_same
from poptorch_emu.runtime.progress import progress_bar
from poptorch_emu.runtime.session import Session
from poptorch_emu.saving import load_executable, save_executable

_NOT_COMPILED = "Model has not been compiled or has been destroyed."


class PoplarExecutor:
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
        if options is not None and not isinstance(options, Options):
            raise make_error(
                f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options)"
            )
        options = options or Options()
        options._freeze()
        self._options = options.clone()
        self._model = model
        self._user_model = model if user_model is None else user_model
        self._training = training
        self._signature = Signature(model.forward)
        self._executable: Executable | None = None
        self._session: Session | None = None
        self._arguments: Arguments | None = None
        self._host_is_stale = False
        self._weights_version = 0
        self._seen_version = 0
        self._compilation_time: datetime.timedelta | None = None
        self._has_warned_about_strides = False
        if self._options.defaultOutputMode():
            self._options.outputMode(OutputMode.Final if training else OutputMode.All)
        self._optimizer = OptimizerLink(optimizer, self._options) if training else None
        self._options._freeze()
        if training:
            wrapping.wrap(self._user_model, self.copyWeightsToHostIfNeeded, self.destroy)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model on a whole batch, after compiling it at the first call (exact).

        Returns:
            What `forward` returns, as tensors on the CPU, gathered by the output mode.

        Raises:
            Error: the arguments are not those the model was compiled for, or the device failed.
        """
        assert not self._is_offline, (
            "Trying to run a model on an offline device (ConnectionType.Never): only "
            "`model.compile(inputs)` is possible. Choose another connection type to run."
        )
        arguments = self._contiguous(self._signature.bind(args, kwargs))
        if self._executable is None:
            self._compile(arguments)
        if self._session is None:
            self.attachToDevice()
        assert self._arguments is not None and self._session is not None
        check_same(self._arguments, arguments)
        if not self._training:
            self._refresh_weights()
        elif self._optimizer is not None:
            self._optimizer.send_if_dirty(self._session)
        outputs = self._session.run(arguments.tensors())
        if self._training:
            self._host_is_stale = True
        return outputs

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles for these arguments without running (exact)."""
        arguments = self._contiguous(self._signature.bind(args, kwargs))
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

    def save(
        self, filename: str | Path, export_model: bool = True, save_rng_state: bool = True
    ) -> None:
        """Saves what was compiled, for `poptorch.load` and `loadExecutable` (exact).

        The program is saved as data; the model, options and optimiser as pickles of PyTorch.
        """
        save_executable(self, filename, export_model, save_rng_state)

    def loadExecutable(self, filename: str | Path) -> None:
        """Takes what was compiled from a file; the model is traced again, not compiled (exact).

        The saved inputs are unpickled, which can run code: load only files that you trust.
        """
        load_executable(self, filename)

    def isCompiled(self) -> bool:
        """Returns whether the model has been compiled (exact)."""
        return self._executable is not None

    def compilationTime(self) -> datetime.timedelta:
        """Returns how long the compilation took (exact).

        Raises:
            Error: the model is not compiled, or `showCompilationProgressBar(False)` was set.
        """
        if self._executable is None:
            raise make_error("Please compile the model before obtaining compilation time.")
        if self._compilation_time is None:
            raise make_error(
                "Please set showCompilationProgressBar option to obtain compilation time."
            )
        return self._compilation_time

    def destroy(self) -> None:
        """Releases the device and drops what was compiled; weights come back first (exact)."""
        if self._executable is None:
            return
        if self._training:
            self.copyWeightsToHostIfNeeded()
            if self._optimizer is not None and self._session is not None:
                self._optimizer.receive(self._session)
        self._write_profile()
        self._session = None
        self._executable = None
        self._arguments = None
        if self._training:
            wrapping.unwrap(self._user_model)

    def copyWeightsToHost(self) -> None:
        """Copies parameters and floating-point buffers from the device (exact)."""
        self._compiled()
        if self._session is not None:
            self._host_is_stale = False
            self._session.download(self._host_tensors())
            self._weights_version += 1

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copies the weights from the device if they are newer there; returns whether (exact)."""
        if not self._host_is_stale:
            return False
        logger.debug("Implicit copyWeightsToHost()")
        self.copyWeightsToHost()
        return True

    def copyWeightsToDevice(self) -> None:
        """Copies parameters and floating-point buffers to the device: the host wins (exact)."""
        self._compiled()
        self._host_is_stale = False
        if self._optimizer is not None and self._session is not None:
            self._optimizer.receive(self._session)
        if self._session is not None:
            self._session.upload(self._host_tensors())
            self._weights_version += 1

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        """Loads the user model's state and uploads it if a device is attached (exact)."""
        result = self._user_model.load_state_dict(state_dict, strict)
        if self._session is not None:
            logger.debug("load_state_dict: implicit copyWeightsToDevice()")
            self.copyWeightsToDevice()
        return result

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Replaces the optimiser, or sends changed values of the same one (exact).

        Takes effect from the next call. Constant values, and the class, cannot change.
        """
        if self._optimizer is None:
            raise AttributeError(
                "setOptimizer was called on an inference model, which has no optimizer."
            )
        self._optimizer.replace(optimizer, self._session)

    def attachToDevice(self) -> None:
        """Takes a device and uploads weights, optimiser state and random state (exact)."""
        executable = self._compiled()
        assert not self._is_offline, "Trying to attach to an offline device (ConnectionType.Never)"
        if self._session is not None:
            raise make_error("Device is already attached")
        self._session = Session(executable)
        self._session.upload(self._host_tensors())
        if self._optimizer is not None:
            self._optimizer.send(self._session)

    def detachFromDevice(self) -> None:
        """Brings weights and optimiser state back and releases the device (exact)."""
        self._compiled()
        if self._session is None:
            raise make_error("Device is not attached")
        if self._training:
            self.copyWeightsToHostIfNeeded()
        if self._optimizer is not None:
            self._optimizer.receive(self._session)
        self._write_profile()
        self._session = None

    def isAttachedToDevice(self) -> bool:
        """Returns whether the compiled model holds a device (exact)."""
        return self._session is not None

    @property
    def rng_state(self) -> list[int]:
        """The seed and the state of the generator (exact in form; the numbers are ours)."""
        return self._attached().rng_state

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._attached().rng_state = list(state)

    @property
    def model(self) -> torch.nn.Module:
        """The user's model."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The wrapper's own frozen options."""
        return self._options

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the user's model."""
        if name.startswith("__") or "_user_model" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._user_model, name)

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    @property
    def _is_offline(self) -> bool:
        return bool(self._options.connection_type == ConnectionType.Never)

    def _compiled(self) -> Executable:
        if self._executable is None:
            raise make_error(_NOT_COMPILED)
        return self._executable

    def _attached(self) -> Session:
        self._compiled()
        if self._session is None:
            self.attachToDevice()
        assert self._session is not None
        return self._session

    def _config(self) -> CompileConfig:
        return freeze(self._options, is_training=self._training)

    def _compile(self, arguments: Arguments, make: MakeExecutable = compile_model) -> None:
        start = time.perf_counter()
        config = self._config()
        check_batches(arguments.tensors(), config)
        parameters = dict(self._user_model.named_parameters())
        optimizer = self._optimizer.config(parameters) if self._optimizer else None
        request = Request(
            model=self._model,
            arguments=arguments.rebuild_with,
            tensors=arguments.tensors(),
            config=config,
            optimizer=optimizer,
            parameters=tuple(parameters),
            hooks=(run_pre_compile_hooks, run_post_compile_hooks),
        )
        with progress_bar(STEPS, config.shows_progress_bar) as on_step:
            self._executable = make(request, on_step)
        if config.shows_progress_bar:
            self._compilation_time = datetime.timedelta(seconds=time.perf_counter() - start)
        self._arguments = arguments
        if not self._is_offline:
            self.attachToDevice()

    def _write_profile(self) -> None:
        """Writes what ran since the device was attached, if `enableProfiling` asked for it."""
        executable = self._compiled()
        config = executable.config
        if config.profile_dir is None or self._session is None:
            return
        name = config.model_name or ("training" if self._training else "inference")
        folder = Path(config.profile_dir) / name
        events = self._session.take_events()
        write_profile(folder, executable, executable.segment_names, events)

    def _refresh_weights(self) -> None:
        """Takes over what a training wrapper of the same model has learnt since the last call."""
        owner = wrapping.owner_of(self._user_model)
        if owner is None or owner is self or self._session is None:
            return
        owner.copyWeightsToHostIfNeeded()
        if owner._weights_version != self._seen_version:
            logger.debug("Implicit copyWeightsToDevice()")
            self._session.upload(self._host_tensors())
            self._seen_version = owner._weights_version

    def _host_tensors(self) -> dict[str, torch.Tensor]:
        return dict(self._named_tensors())

    def _named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._user_model.named_parameters()
        yield from self._user_model.named_buffers()

    def _contiguous(self, arguments: Arguments) -> Arguments:
        if all(tensor.is_contiguous() for tensor in arguments.tensors()):
            return arguments
        if not self._has_warned_about_strides:
            logger.warning(
                "At least one input tensor is not contiguous: it is copied at every call. Make "
                "inputs contiguous to avoid that."
            )
            self._has_warned_about_strides = True
        return arguments.map(torch.Tensor.contiguous)
