"""`Options`: settings of a model and its data, in PopTorch's names.

Each setter checks its argument and returns the options, so that calls can be chained. `freeze.py`
converts the values for a compilation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch

from poptorch_emu.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from poptorch_emu.errors import require
from poptorch_emu.log import logger
from poptorch_emu.options.added_settings import EmulatorOptions
from poptorch_emu.options.base import (
    COUNTS,
    Freezable,
    flag,
    integer,
    merge,
    note_accepted,
    require_type,
)
from poptorch_emu.options.compilation_progress import ProgressBar
from poptorch_emu.options.distributed import _DistributedOptions
from poptorch_emu.options.popart import _PopartOptions
from poptorch_emu.options.precision import _PrecisionOptions
from poptorch_emu.options.reporting import ReportingOptions
from poptorch_emu.options.strategies import PipelinedExecution, _IExecutionStrategy
from poptorch_emu.options.tensor_locations import _TensorLocationOptions
from poptorch_emu.options.text import apply_defaults, apply_file, apply_json
from poptorch_emu.options.training import _JitOptions, _TrainingOptions
from poptorch_emu.untrusted.files import given_path

_IPU_PREFIX = "IPU"
_EXCLUDED = ("install/poptorch", "site-packages/torch", "site-packages/poptorch")


def _default_values() -> dict[str, Any]:
    return {
        "replication_factor": 1,
        "input_group_size": 1,
        "input_cgt": CommGroupType.Consecutive,
        "broadcast_buffers": True,
        "device_iterations": 1,
        "log_dir": ".",
        "max_repeat_logs": 4,
        "auto_round_num_ipus": False,
        "anchored_tensors": {},
        "output_mode": OutputMode.Default.value,
        "output_return_period": 1,
        "connection_type": ConnectionType.Always.value,
        "sync_pattern": SyncPattern.Full.value,
        "available_memory_proportion": {},
    }


class Options(ReportingOptions, path="options"):
    """All options of a model or a `DataLoader` (exact).

    Options are frozen when a model is wrapped or a `DataLoader` is created with them; `clone()`
    returns options that can be changed. Environment variables change the defaults:
    `POPTORCH_CACHE_DIR` and, as JSON, `POPTORCH_DEFAULT_OPTIONS`.
    """

    _old_names = {"Popart": "_Popart", "anchorMode": "_anchor_mode"}
    _counts = {
        "device_iterations": ("poptorch.Options.deviceIterations", COUNTS),
        "replication_factor": ("poptorch.Options.replicationFactor", COUNTS),
        "output_return_period": ("output_return_period", COUNTS),
        "input_group_size": ("input_group_size", COUNTS),
        "max_repeat_logs": ("max_lines of maxRepeatLogs", range(2**64)),
    }

    def __init__(self) -> None:
        """Sets the defaults, then applies the environment variables."""
        self._popart = _PopartOptions()
        self._training = _TrainingOptions(self._popart)
        self._precision = _PrecisionOptions(self._popart)
        self._jit = _JitOptions()
        self._distributed = _DistributedOptions()
        self._tensor_locations = _TensorLocationOptions()
        self._execution_strategy: _IExecutionStrategy = PipelinedExecution()
        self._progress_bar = ProgressBar()
        self._emulator = EmulatorOptions()
        self._relax_optimizer_checks = False
        self._show_compilation_progress_bar = True
        self._module_namescope_enabled = True
        self._source_location_excludes = list(_EXCLUDED)
        super().__init__(**_default_values())
        self._apply_environment()

    def _apply_environment(self) -> None:
        if cache_dir := os.environ.get("POPTORCH_CACHE_DIR"):
            logger.info("POPTORCH_CACHE_DIR is set: setting cache path to %s", cache_dir)
            self.enableExecutableCaching(cache_dir)
        apply_defaults(self)

    @property
    def Training(self) -> _TrainingOptions:
        """Options that only training reads."""
        return self._training

    @property
    def Precision(self) -> _PrecisionOptions:
        """Options of numeric precision."""
        return self._precision

    @property
    def Jit(self) -> _JitOptions:
        """Options of a tracer that no longer exists."""
        return self._jit

    @property
    def Distributed(self) -> _DistributedOptions:
        """Options of a run in several processes."""
        return self._distributed

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Options of the memory that holds each kind of tensor."""
        return self._tensor_locations

    @property
    def Emulator(self) -> EmulatorOptions:
        """Settings of the emulator, which `emulator.set_latencies` and its neighbours set."""
        return self._emulator

    @property
    def _Popart(self) -> _PopartOptions:
        return self._popart

    def deviceIterations(self, device_iterations: int) -> Options:
        """Sets how often the device runs the loop over micro-batches in one step (exact)."""
        self.set(device_iterations=device_iterations)
        return self

    def replicationFactor(self, replication_factor: int) -> Options:
        """Sets the number of copies of the model that share the work of a step (exact)."""
        self.set(replication_factor=replication_factor)
        return self

    def inputReplicaGrouping(
        self, input_group_size: int, input_group_type: CommGroupType
    ) -> Options:
        """Makes replicas of one group read the same input (exact).

        Call it after `replicationFactor`.

        Raises:
            ValueError: the type is `All`, or the size does not divide the replication factor.
        """
        replicas = self.replication_factor
        input_group_size = integer(input_group_size, "input_group_size", range(2**31))
        if input_group_type == CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, CommGroupType.Consecutive
        if input_group_type == CommGroupType.All:
            raise ValueError(
                "input_group_type cannot be All. Use Consecutive with input_group_size="
                f"{replicas}, the replication factor."
            )
        if input_group_size > replicas:
            raise ValueError(
                "input_group_size cannot be larger than replication_factor: "
                f"{input_group_size} > {replicas}. Call replicationFactor() first."
            )
        if input_group_size < 1 or replicas % input_group_size != 0:
            raise ValueError(
                "input_group_size must be a factor of replication_factor: "
                f"{input_group_size} does not divide {replicas}."
            )
        self.set(input_group_size=input_group_size, input_cgt=input_group_type)
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Options:
        """Sets whether replicas keep buffers equal (exact).

        By default, a model that writes buffers causes a warning and runs as with `False`. With
        `True` it is refused; PopTorch refuses it in both cases.
        """
        self.set(broadcast_buffers=broadcast_buffers)
        return self

    def outputMode(
        self, output_mode: OutputMode, output_return_period: int | None = None
    ) -> Options:
        """Sets which outputs of a step reach the host (exact).

        Args:
            output_mode: selection of the outputs.
            output_return_period: the n of `EveryN`, in device iterations.

        Raises:
            AssertionError: `output_mode` is not an `OutputMode`, or `EveryN` has no period.
        """
        require_type(output_mode, OutputMode, "output_mode")
        if output_mode == OutputMode.EveryN:
            is_integer = isinstance(output_return_period, Integral)
            require(
                is_integer and output_return_period is not True and output_return_period in COUNTS,
                "EveryN anchor must have output_return_period set to valid positive integer, "
                f"not to {output_return_period!r}.",
            )
        elif output_return_period:
            logger.info(
                "Anchor return period argument ignored with output_mode set to %s", output_mode
            )
        self.set(output_mode=output_mode.value, output_return_period=output_return_period or 1)
        return self

    def _anchor_mode(
        self, anchor_mode: OutputMode, anchor_return_period: int | None = None
    ) -> Options:
        """Sets which outputs of a step reach the host, under the name of release 2 (exact)."""
        return self.outputMode(anchor_mode, anchor_return_period)

    def defaultOutputMode(self) -> bool:
        """Returns whether the kind of model will choose the output mode (exact)."""
        return bool(self.output_mode == OutputMode.Default)

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int = 1,
    ) -> None:
        """Makes a tensor inside the model readable by `getAnchoredTensor(short_name)` (exact).

        Args:
            short_name: name that the user chooses.
            long_name: name of the tensor in `getTensorNames()`.
            output_mode: selection of its values; by default that of the model.
            output_return_period: the n of `EveryN`, in device iterations.
        """
        period = 1
        if output_mode == OutputMode.EveryN:
            period = integer(output_return_period, "output_return_period of anchorTensor")
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, period]

    def setExecutionStrategy(self, strategy: _IExecutionStrategy) -> Options:
        """Sets which blocks form a stage and how stages share the IPUs (exact)."""
        require_type(strategy, _IExecutionStrategy, "strategy")
        self._execution_strategy = strategy
        return self

    def setAvailableMemoryProportion(self, available_memory_proportion: dict[str, float]) -> None:
        """Sets the share of an IPU's memory that matmuls and convolutions may use (modelled).

        Args:
            available_memory_proportion: maps "IPU<n>" to a number between 0 and 1.

        Raises:
            AssertionError: a key does not start with "IPU", or a value is not a number.
        """
        require(
            isinstance(available_memory_proportion, dict)
            and all(str(key).startswith(_IPU_PREFIX) for key in available_memory_proportion),
            "Available memory proportions are expected to be in a dictionary of "
            f'{{"IPU0": 0.5, ...}}, not {available_memory_proportion!r}.',
        )
        for key, proportion in available_memory_proportion.items():
            require(
                isinstance(proportion, (Real, torch.Tensor)) and not isinstance(proportion, bool),
                f"The available memory proportion of {key} must be a number, not {proportion!r}.",
            )
        self.set(
            available_memory_proportion={
                int(key.removeprefix(_IPU_PREFIX)): proportion
                for key, proportion in available_memory_proportion.items()
            }
        )

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Options:
        """Reserves the next power of two of IPUs if the model uses another number (exact)."""
        self.set(auto_round_num_ipus=auto_round_num_ipus)
        return self

    def randomSeed(self, random_seed: int) -> Options:
        """Seeds the device's generator, and immediately PyTorch's generator on the host (exact).

        Raises:
            ValueError: the seed has more than 64 bits.
        """
        random_seed = integer(random_seed, "random_seed", range(-(2**63), 2**64))
        self.createOrSet(random_seed=random_seed)
        torch.manual_seed(random_seed)
        return self

    def enableStableNorm(self, enabled: bool) -> Options:
        """Requests the two-pass variance, which the emulator always uses (accepted)."""
        note_accepted("Options.enableStableNorm")
        self._popart.set("enableStableNorm", flag(enabled, "enableStableNorm"))
        return self

    def enableSyntheticData(self, enabled: bool) -> Options:
        """Replaces the inputs by random data on the device (exact; the numbers are ours).

        The values of the inputs are ignored. Floating-point inputs become normally distributed,
        integers and booleans zero; each call has the same values.
        """
        is_enabled = flag(enabled, "enableSyntheticData")
        self._popart.set("syntheticDataMode", 2 if is_enabled else 0)
        return self

    def enableExecutableCaching(self, path: str | None) -> Options:
        """Stores executables in a directory and loads them from it; `None` disables it (exact)."""
        if path is None:
            self._popart.set("enableEngineCaching", False)
        else:
            given_path(path, "The path of enableExecutableCaching")
            self._popart.set("cachePath", path)
            self._popart.set("enableEngineCaching", True)
        return self

    def connectionType(self, connection_type: ConnectionType) -> Options:
        """Sets when a model attaches to a device (exact)."""
        require_type(connection_type, ConnectionType, "connection_type")
        self.set(connection_type=connection_type.value)
        return self

    def syncPattern(self, sync_pattern: SyncPattern) -> Options:
        """Sets which IPUs synchronise with each other (accepted)."""
        require_type(sync_pattern, SyncPattern, "sync_pattern")
        note_accepted("Options.syncPattern")
        self.set(sync_pattern=sync_pattern.value)
        return self

    def useIpuModel(self, use_model: bool) -> Options:
        """Runs on the IPU Model instead of the virtual system, with any number of IPUs (exact).

        This option overrides `POPTORCH_IPU_MODEL`.
        """
        self.createOrSet(use_model=flag(use_model, "useIpuModel"))
        return self

    def useIpuId(self, ipu_id: int) -> Options:
        """Selects a device by its number (exact).

        With n IPUs, the first n devices are single IPUs; aligned groups of 2, 4, ... follow.
        """
        self.createOrSet(ipu_id=integer(ipu_id, "ipu_id", range(2**31)))
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Options:
        """Compiles without a device, for IPUs of version 1, 2 or 21 (exact)."""
        version = integer(ipu_version, "ipu_version")
        self.connectionType(ConnectionType.Never)
        self.createOrSet(ipu_version=version)
        return self

    def updatableNamedBuffers(self, buffers: list[str]) -> Options:
        """Names the buffers that `copyNamedBuffersToDevice` sends again (exact)."""
        self._popart.set("updatableNamedBuffers", buffers)
        return self

    def loadFromFile(self, filepath: str | Path) -> Options:
        """Applies a file whose lines are setter calls such as `deviceIterations(4)` (exact).

        Raises:
            ConfigFileError: a line is not valid Python.
        """
        apply_file(self, filepath)
        return self

    def from_json(self, string: str) -> Options:
        """Applies JSON such as `{"Training.gradientAccumulation": 4}` (exact)."""
        apply_json(self, string)
        return self

    def toDict(self) -> dict[str, Any]:
        """Returns all options in one flat dictionary (exact).

        Raises:
            AssertionError: the output mode is the default, or two groups set the same option.
        """
        require(
            not self.defaultOutputMode(),
            "An output mode must be picked before serialisation. Call outputMode().",
        )
        flat = self._execution_strategy.backendOptions()
        merge(flat, self._popart.options)
        self.update(flat)
        for part in (self._training, self._distributed, self._tensor_locations):
            part.update(flat)
        if self._show_compilation_progress_bar:
            merge(flat, {"compilation_progress_bar_fn": self._progress_bar})
        return flat

    def _freeze(self) -> None:
        super()._freeze()
        for part in self._parts():
            part._freeze()

    def _unfreeze(self) -> None:
        super()._unfreeze()
        for part in self._parts():
            part._unfreeze()

    def _parts(self) -> Iterator[Freezable]:
        return (value for value in self.__dict__.values() if isinstance(value, Freezable))

    def _shown(self) -> dict[str, Any]:
        """Returns the values, then the groups of options in alphabetical order."""
        names = (
            "Distributed",
            "Emulator",
            "Jit",
            "Precision",
            "TensorLocations",
            "Training",
            "_Popart",
        )
        groups = {name: getattr(self, name) for name in names}
        return {**self._values, "execution_strategy": self._execution_strategy, **groups}
