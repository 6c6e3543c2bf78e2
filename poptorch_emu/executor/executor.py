"""`PoplarExecutor`: the public methods of a wrapped model.

All other names are looked up in the user's model, so the class has few names of its own.
"""

from __future__ import annotations

import copy
import datetime
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from poptorch_emu.compile.executable import Executable
from poptorch_emu.compile.graph_json import to_plain
from poptorch_emu.errors import make_error, require
from poptorch_emu.executor.args_parser import ArgsParser, Call
from poptorch_emu.executor.captures import uncompiled_methods
from poptorch_emu.executor.device_model import DeviceModel
from poptorch_emu.executor.hooks import (
    _OverwriteContextManager as _OverwriteContextManager,  # Programs import it from here.
)
from poptorch_emu.executor.measurement import COMPUTING, INPUTS, OUTPUTS, WHOLE, Latency
from poptorch_emu.executor.model_attributes import attribute_of
from poptorch_emu.executor.module_repr import module_repr
from poptorch_emu.executor.own_options import own_options
from poptorch_emu.executor.replica_grouping import Triple
from poptorch_emu.optim.device_link import OptimizerLink
from poptorch_emu.options import Options
from poptorch_emu.options.optimizer_settings import optimizer_settings
from poptorch_emu.report.latency import Counters
from poptorch_emu.runtime.session import Session
from poptorch_emu.runtime.stream import ResultStream

_NO_PICKLE = (
    "A wrapped model holds a device: it cannot be pickled, nor copied once it is compiled. Use "
    "save() and poptorch.load() for all of it, state_dict() for its weights, or copy or pickle the "
    "module, which is its attribute 'model'."
)


@uncompiled_methods
class PoplarExecutor:
    """A model that runs on virtual IPUs (exact).

    `trainingModel` and `inferenceModel` make it. Other attributes are those of the user's model.
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
            options: options, which this call freezes; a default `Options` if None.
            training: whether calls train.
            optimizer: optimiser of a training model.
            user_model: module whose weights are trained, if it is another object than `model`.
            poptorch_version: accepted and ignored.
        """
        options = options or Options()
        if not isinstance(options, Options):
            raise make_error(
                f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options). "
                "Options come after the model, and the optimizer after them, or by name."
            )
        kept = own_options(options, is_training=training)
        self._model = model
        self._user_model = model if user_model is None else user_model
        self._args_parser = ArgsParser(model)
        link = OptimizerLink(optimizer, optimizer_settings(kept)) if training else None
        self._on_device = on_device = DeviceModel(model, self._user_model, kept, self, link)
        if kept.Emulator.has_modelled_latencies:
            to_modelled = partial(on_device.compilation.modelled_spans, kept)
            on_device.measurement.modelled = to_modelled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model on a whole batch, after compiling it at the first call (exact).

        Returns:
            The outputs of `forward` as CPU tensors, selected by the output mode.

        Raises:
            Error: the model was compiled for other arguments, or the device failed.
        """
        return self._on_device.run(Call(self._args_parser, args, kwargs))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles for these arguments without running (exact)."""
        self._on_device.compile(Call(self._args_parser, args, kwargs))

    def compileAndExport(
        self, filename: str | Path, *args: Any, export_model: bool = True, **kwargs: Any
    ) -> None:
        """Compiles for these arguments and saves the result (exact); see `save`."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def save(
        self, filename: str | Path, export_model: bool = True, save_rng_state: bool = True
    ) -> None:
        """Saves the compiled model for `poptorch.load` and `loadExecutable` (exact).

        The program is saved as data, and the model, options and optimiser as PyTorch's pickles.
        """
        self._on_device.save(filename, export_model, save_rng_state)

    def loadExecutable(self, filename: str | Path) -> None:
        """Loads the program in a file; the model is traced again, not compiled (exact).

        The saved inputs are unpickled, which can run code: load only files that you trust.
        """
        self._on_device.load(filename)

    def isCompiled(self) -> bool:
        """Returns whether the model has been compiled (exact)."""
        return self._executable is not None

    def destroy(self) -> None:
        """Copies the weights back, releases the device and unwraps the model (exact).

        The next call compiles again.
        """
        self._on_device.destroy()

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Replaces the optimiser, or sends changed values of the same one (exact).

        The change applies from the next call on. Constant values and the class cannot change.
        """
        self._on_device.set_optimizer(optimizer)

    def attachToDevice(self) -> None:
        """Acquires a device and uploads weights, optimiser state and random state (exact).

        Raises:
            Error: the model is not compiled or is attached already, or no device is free.
            AssertionError: the model was compiled offline.
        """
        self._on_device.attach()

    def detachFromDevice(self) -> None:
        """Copies weights, optimiser state and random state back and releases the device (exact).

        Raises:
            Error: the model is not compiled or not attached.
        """
        self._on_device.detach()

    def isAttachedToDevice(self) -> bool:
        """Returns whether the compiled model holds a device (exact).

        A model whose outputs are all constants needs no device, and counts as attached.
        """
        return self._on_device.counts_as_attached

    def copyWeightsToHost(self) -> None:
        """Copies parameters and floating-point buffers from the device (exact).

        Raises:
            Error: the model is not compiled.
        """
        self._on_device.download()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copies the weights from the device if they are newer there; returns whether (exact)."""
        return self._on_device.weights.bring_home()

    def copyWeightsToDevice(self) -> None:
        """Copies parameters and floating-point buffers to the device: the host wins (exact)."""
        self._on_device.upload()

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        """Loads the user model's state and uploads it if a device is attached (exact)."""
        return self._on_device.load_state_dict(state_dict, strict)

    def copyNamedBuffersToDevice(self) -> None:
        """Copies the buffers of `Options.updatableNamedBuffers` to the device (exact).

        As with `copyWeightsToDevice`, training since the last download is lost.

        Raises:
            Error: the model is not compiled, or no buffers are named.
        """
        self._on_device.upload_named_buffers()

    @property
    def rng_state(self) -> list[int]:
        """The seed and the state of the generator (exact in form; the numbers are ours).

        The first element is 0 if the model draws no random numbers. A list of one element sets the
        seed only.

        Raises:
            Error: the model is not compiled, or the list has another length.
            TypeError: the value is not a list of 64-bit integers.
        """
        return self._on_device.read_rng_state()

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._on_device.write_rng_state(state)

    def compilationTime(self) -> datetime.timedelta:
        """Returns the duration of the compilation (exact).

        Raises:
            Error: the model is not compiled; or `showCompilationProgressBar(False)` was set and
                POPTORCH_EMU_STRICT is "error" (otherwise a warning says that PopTorch raises).
        """
        return self._on_device.compilation.time()

    def cycleCount(self) -> int:
        """Returns the number of cycles of the last call (modelled).

        The number is that of `emulator.estimate` for the virtual system, and equal for every call.

        Raises:
            Error: `Options.logCycleCount` was not set, or nothing has run.
        """
        if not self._options._Popart.options["instrumentWithHardwareCycleCounter"]:
            raise make_error(
                "Cycle count logging is disabled. Please set option logCycleCount to True to "
                "enable it."
            )
        if self._executable is None:
            raise make_error("Please run the model at least once before obtaining cycle count.")
        return self._on_device.times().cycles

    def getPerfCounters(self) -> Counters:
        """Returns the times at which the last call transferred inputs and outputs (exact in form).

        The clock is that of this computer, or of the machine after `emulator.set_latencies`.

        Returns:
            For "input", "input_complete", "output" and "output_complete", one list for each tensor
            with the times of its pieces in seconds, ascending; `[[]]` without a call.
        """
        return self._on_device.measurement.counters()

    def getLatency(self) -> Latency:
        """Returns the shortest, longest and mean time from an input to its output (exact in form).

        The times are in seconds; all are 0 if nothing has run.
        """
        return self._on_device.measurement.latency(WHOLE)

    def getHostIpuLatency(self) -> Latency:
        """Returns the latencies of the inputs on their way to the device (exact in form)."""
        return self._on_device.measurement.latency(INPUTS)

    def getComputeLatency(self) -> Latency:
        """Returns the latencies from last input on the device to last output (exact in form)."""
        return self._on_device.measurement.latency(COMPUTING)

    def getIpuHostLatency(self) -> Latency:
        """Returns the latencies of the outputs on their way to the host (exact in form)."""
        return self._on_device.measurement.latency(OUTPUTS)

    def getTensorNames(self) -> list[str]:
        """Returns the sorted names that `Options.anchorTensor` accepts (exact in form).

        Parameters, gradients and optimiser states have PopTorch's names. Results of operations are
        named after their module and type, for example `fc1/Gemm:0`.

        Raises:
            AssertionError: the model is not compiled.
        """
        executable = self._executable
        if executable is None:
            raise AssertionError(
                "Model must be compiled before calling getTensorNames. Call compile(...) first."
            )
        return list(executable.tensor_names)

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Returns the value of an anchored tensor in the last call (exact).

        The anchor's own output mode selects the values. For tensors that change once in each weight
        update (`UpdatedVar___...`, states, `Accum___...`), updates count instead of micro-batches.

        Raises:
            AssertionError: the anchor does not exist, or the model was never called.
        """
        anchored = self._on_device.anchored
        require(
            short_name in anchored,
            f"No tensor with name {short_name} found. Anchored in the last call: "
            f"{', '.join(anchored) or 'none'}.",
        )
        return anchored[short_name]

    @property
    def model(self) -> torch.nn.Module:
        """The user's model."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The wrapper's own frozen options."""
        return self._on_device.options

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the user's model.

        Before the compilation, a parameter also has the method `replicaGrouping`.
        """
        if name.startswith("__") or "_user_model" not in self.__dict__:
            raise AttributeError(name)
        value = attribute_of(self._user_model, name, type(self))
        if self._executable is None:
            self._on_device.compilation.groupings.offer(name, value)
        return value

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises, because a wrapper cannot be pickled.

        Raises:
            TypeError: always; the message names alternatives.
        """
        raise TypeError(_NO_PICKLE)

    def __deepcopy__(self, memo: dict[int, Any]) -> PoplarExecutor:
        """Returns a wrapper of a copy of the model, if nothing is compiled.

        Raises:
            TypeError: the model is compiled.
        """
        if self.isCompiled():
            raise TypeError(_NO_PICKLE)
        duplicate = type(self).__new__(type(self))
        memo[id(self)] = duplicate
        vars(duplicate).update(copy.deepcopy(vars(self), memo))
        return duplicate

    @property
    def per_replica_params(self) -> dict[str, Triple]:
        """Arguments of `replicaGrouping`, by the parameter's name."""
        return self._on_device.compilation.groupings.triples

    # Programs and tools of this package use the private names that follow.

    @property
    def _options(self) -> Options:
        return self._on_device.options

    @property
    def _training(self) -> bool:
        return self._on_device.optimizer_link is not None

    @property
    def _optimizer(self) -> torch.optim.Optimizer | None:
        """The user's optimiser."""
        link = self._on_device.optimizer_link
        return None if link is None else link.optimizer

    @property
    def _is_attached(self) -> bool:
        return self._on_device.is_attached

    @property
    def _executable(self) -> Executable | None:
        return self._on_device.compilation.executable

    @property
    def _session(self) -> Session | None:
        return self._on_device.device.session

    def _compiled(self) -> Executable:
        """Returns the executable, or raises an `Error`."""
        return self._on_device.compilation.checked()

    def _debugGetPopartIR(self) -> str:
        """Returns the operations of each graph as JSON: names and types as in PopTorch (modelled).

        Each list of operations has the name of its graph: "maingraph" for the model, and another
        name for each body of a loop or branch.
        """
        return json.dumps(to_plain(self._compiled()), indent=1)

    def _stream(
        self, args: Any, kwargs: Any, max_unread: int, *, are_kept: bool = False
    ) -> ResultStream:
        """Begins a call whose results are read while it runs."""
        call = Call(self._args_parser, args, kwargs)
        return self._on_device.stream(call, max_unread, are_kept=are_kept)
