"""Owns the engine of one compiled model: weights up and down, hyper-parameters, one call.

The host's tensors and the device's variables are different memory; nothing moves between them but
by `upload` and `download`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from poptorch_emu import _C
from poptorch_emu.compile.executable import Executable, VariableInfo
from poptorch_emu.compile.lower import scalar_value
from poptorch_emu.enums import CommGroupType
from poptorch_emu.runtime.host_calls import HostCalls
from poptorch_emu.structure import flatten_tensors, rebuild
from poptorch_emu.update.config import OptimizerConfig

# Environment: how many threads run virtual IPUs; results never depend on it.
_WORKERS = "POPTORCH_EMU_WORKERS"

# Source: PopTorch's numeric types: the device has no 64-bit floating point.
_NARROW = {torch.float64: torch.float32}


class Session:
    """One executable, loaded on the engine."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        config = executable.config
        workers, intra_op_threads = thread_counts(
            executable.schedule.num_ipus * config.replication_factor
        )
        self._executor = _C.Executor(
            executable.program,
            config.replication_factor,
            workers,
            intra_op_threads,
            _input_groups(config.replication_factor, config.input_group_size, executable),
        )
        for variable in executable.variables.values():
            if variable.initial is not None:
                value = torch.full(variable.shape, variable.initial, dtype=variable.dtype)
                self._executor.write_variable(variable.index, 0, value)
        self._host_calls = HostCalls()
        for name, function in executable.host_functions.items():
            self._executor.set_host_function(name, self._host_calls.guarded(function))
        self.set_seed(config.random_seed)
        self._executor.set_tracing(config.profile_dir is not None)

    def take_events(self) -> list[_C.Event]:
        """Returns what ran since the last time, when the options ask for a profile."""
        return self._executor.take_events()

    def upload(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copies host tensors to the variables of the same names; others are ignored."""
        for name, tensor in tensors.items():
            variable = self.executable.variables.get(name)
            if variable is not None:
                self._write(variable, tensor)

    def download(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copies the variables into host tensors of the same names, in place."""
        with torch.no_grad():
            for name, tensor in tensors.items():
                variable = self.executable.variables.get(name)
                if variable is not None:
                    tensor.copy_(self._executor.read_variable(variable.index, 0))

    def read_states(self) -> dict[str, torch.Tensor]:
        """Returns a copy of each state of the optimiser, by name."""
        return {
            variable.name: self._executor.read_variable(variable.index, 0)
            for variable in self.executable.variables.values()
            if variable.is_state
        }

    def write_states(self, states: Mapping[str, torch.Tensor]) -> list[str]:
        """Copies states of the optimiser to the device; returns the names that were missing."""
        missing = []
        for variable in self.executable.variables.values():
            if variable.is_state:
                if variable.name in states:
                    self._write(variable, states[variable.name])
                else:
                    missing.append(variable.name)
        return missing

    def set_hyper_parameters(self, optimizer: OptimizerConfig) -> None:
        """Gives the variable hyper-parameters their present values."""
        for (name, group), index in self.executable.scalars.items():
            self._executor.set_scalar(index, scalar_value(optimizer, name, group))

    def set_seed(self, seed: int | None) -> None:
        """Starts the random numbers again; without a seed, at a place nobody can foresee."""
        chosen = int.from_bytes(os.urandom(7), "little") if seed is None else seed
        self._executor.set_seed(chosen)

    @property
    def rng_state(self) -> list[int]:
        """The seed, and how many micro-batches have drawn numbers since."""
        return list(self._executor.rng_state())

    @rng_state.setter
    def rng_state(self, state: Sequence[int]) -> None:
        self._executor.set_rng_state(*state)

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Runs one call on whole batches and returns outputs in the structure forward made.

        Inputs that the model changes in place are written to.
        """
        prepared = [_prepared(tensor) for tensor in inputs]
        executable = self.executable
        with self._host_calls.explaining():
            results = self._executor.run(prepared, executable.num_windows)
        changed = results[executable.num_outputs :]
        for number, value in zip(executable.written_inputs, changed, strict=True):
            with torch.no_grad():
                inputs[number].copy_(value)
        return self._structured(results[: executable.num_outputs])

    def _structured(self, results: Sequence[torch.Tensor]) -> Any:
        executable = self.executable
        device = iter(results)
        count = len(flatten_tensors(executable.outputs))
        leaves = [
            executable.host_outputs[index] if index in executable.host_outputs else next(device)
            for index in range(count)
        ]
        return rebuild(executable.outputs, iter(leaves))

    def _write(self, variable: VariableInfo, tensor: torch.Tensor) -> None:
        value = tensor.detach().to(variable.dtype)
        replicas = self.executable.config.replication_factor if variable.is_per_replica else 1
        for replica in range(replicas):
            self._executor.write_variable(variable.index, replica, value)


def thread_counts(num_virtual_ipus: int) -> tuple[int, int]:
    """Returns how many threads run virtual IPUs, and how many one operation may use.

    With one virtual IPU an operation has all cores. With several, each runs on one thread: two
    small operations at once are faster than two threads on one, and results cannot depend on how
    many workers there are, since that changes only who runs what.
    """
    cores = len(os.sched_getaffinity(0))
    asked = os.environ.get(_WORKERS)
    if num_virtual_ipus == 1:
        return 1, torch.get_num_threads()
    workers = int(asked) if asked else cores
    return max(1, min(workers, num_virtual_ipus)), 1


def _prepared(tensor: torch.Tensor) -> torch.Tensor:
    value = tensor.detach()
    return value.to(_NARROW.get(value.dtype, value.dtype)).contiguous()


def _input_groups(replicas: int, group_size: int, executable: Executable) -> list[int]:
    """Returns which input block each replica reads.

    Source: PopTorch's input replica grouping.
    """
    num_groups = replicas // group_size
    if executable.config.input_group_type is CommGroupType.Orthogonal:
        return [replica % num_groups for replica in range(replicas)]
    return [replica // group_size for replica in range(replicas)]
