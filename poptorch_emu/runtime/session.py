"""Loads one compiled model on the engine: weights, hyper-parameters and calls.

Tensors of the host and variables of the device are separate memory. Only `upload` and `download`
copy weights between them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from poptorch_emu import _C
from poptorch_emu.compile.executable import Executable
from poptorch_emu.config import CompileConfig, SyntheticData, group_of_replica
from poptorch_emu.errors import make_error
from poptorch_emu.runtime.host_calls import HostCalls
from poptorch_emu.runtime.outputs import without_backward
from poptorch_emu.runtime.peer_processes import PeerProcesses, join
from poptorch_emu.runtime.stream import CallState, ResultStream, RunningCall
from poptorch_emu.runtime.synthetic import synthetic_inputs
from poptorch_emu.runtime.threads import Order, order_of, thread_counts
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.structure import Template
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig

_ALONE = nullcontext()

# Source: PopTorch's numeric types: the device has no 64-bit floating point.
_NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}

AfterCall = Callable[["Session", Sequence[torch.Tensor]], None]


class Session:
    """One executable, loaded on the engine.

    Attributes:
        num_windows: number of windows of one call; in training each ends with a weight update.
        call_seconds: duration of the engine's last call in seconds, with updates.
    """

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self._outputs = Template(executable.outputs)
        self.num_windows = executable.num_windows
        self.call_seconds: float | None = None
        self._call: RunningCall | None = None
        self._direct_call = CallState()
        self._synthetic: list[torch.Tensor] | None = None
        self.anchored: dict[str, torch.Tensor] = {}
        config = executable.config
        self._peers: PeerProcesses | None = join(executable)
        follows_lists = order_of(config) is Order.SCHEDULE
        micro_batches = 1 if follows_lists else executable.program.num_independent_micro_batches()
        workers, intra_op_threads = thread_counts(
            executable.schedule.num_ipus * config.replication_factor,
            micro_batches * config.replication_factor,
            has_network=self._peers is not None,
        )
        self._executor = _C.Executor(
            executable.program,
            config.replication_factor,
            workers,
            intra_op_threads,
            _input_groups(config),
            config.process_id * config.replication_factor,
            None if self._peers is None else self._peers.ring,
            follows_lists,
        )
        for variable in executable.variables.values():
            if variable.initial:  # Variables of the engine are zero at first.
                shape = (len(variable.leaders),) if variable.group_of_replica else ()
                self._write(
                    variable,
                    torch.full(shape + variable.shape, variable.initial, dtype=variable.dtype),
                )
        self._host_calls = HostCalls()
        for name, function in executable.host_functions.items():
            self._executor.set_host_function(name, self._host_calls.guarded(function))
        self._executor.look_for_signals()
        self.set_seed(config.random_seed)
        self._executor.set_tracing(config.profile_dir is not None)
        # Function of the session and of the results of each successful call: outputs, inputs that
        # the model changed, and anchors.
        self.after_call: AfterCall = lambda session, results: None

    def take_events(self) -> NDArray[np.int64]:
        """Returns the events since the last time, if the options ask for a profile.

        Each row of (events, 8) int64 has replica, IPU, segment, window, micro-batch, worker, and
        begin and end in nanoseconds of the steady clock. Only the first 100,000 events of a call
        are recorded.
        """
        return self._executor.take_events()

    def upload(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copies host tensors to the variables of the same names; other tensors are ignored."""
        self.check_idle()
        if self._peers is not None:
            self._peers.compare(tensors)
        for name, tensor in tensors.items():
            variable = self.executable.variables.get(name)
            if variable is not None:
                self._write(variable, tensor)

    def download(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copies the variables into host tensors of the same names, in place.

        If the host reads one value for each replica, the tensor gets a first axis for them.
        """
        self.check_idle()
        with torch.no_grad():
            for name, tensor in tensors.items():
                variable = self.executable.variables.get(name)
                if variable is None:
                    continue
                value = self._read(variable)
                if variable.reads_all and tensor.shape != value.shape:
                    tensor.data = value.to(tensor.dtype)
                else:
                    tensor.copy_(value)

    def read_variable(self, name: str) -> torch.Tensor:
        """Returns a copy of the current value of a parameter or buffer."""
        self.check_idle()
        return self._read(self.executable.variables[name])

    def read_states(self) -> dict[str, torch.Tensor]:
        """Returns a copy of each state of the optimiser, by name."""
        self.check_idle()
        return {
            variable.name: self._read(variable)
            for variable in self.executable.variables.values()
            if variable.is_state
        }

    def write_states(self, states: Mapping[str, torch.Tensor]) -> list[str]:
        """Copies states of the optimiser to the device; returns the names that were missing."""
        self.check_idle()
        missing = []
        for variable in self.executable.variables.values():
            if variable.is_state:
                if variable.name in states:
                    self._write(variable, states[variable.name])
                else:
                    missing.append(variable.name)
        return missing

    def set_hyper_parameters(self, optimizer: OptimizerConfig) -> None:
        """Sets the variable hyper-parameters to their current values."""
        self.check_idle()
        for (name, group), index in self.executable.scalars.items():
            self._executor.set_scalar(index, optimizer.value(name, group))

    def set_seed(self, seed: int | None) -> None:
        """Restarts the random numbers with a seed; `None` means an unpredictable seed."""
        if seed is not None:
            chosen = seed
        elif self._peers is not None:
            chosen = self._peers.seed()
        else:
            chosen = int.from_bytes(os.urandom(7), "little")
        # The engine's seed is a signed integer.
        self._executor.set_rng_state((chosen + 2**63) % 2**64 - 2**63, 0)

    @property
    def rng_state(self) -> list[int]:
        """The seed (0 if nothing is random), and the number of micro-batches run since."""
        self.check_idle()
        seed, counter = self._executor.rng_state()
        return [seed if self.executable.is_random else 0, counter]

    @rng_state.setter
    def rng_state(self, state: Sequence[int]) -> None:
        self.check_idle()
        _, counter = self._executor.rng_state()
        self._executor.set_rng_state(state[0], state[1] if len(state) > 1 else counter)

    def input_spans(self) -> list[list[tuple[int, int]]]:
        """Returns, for each input, the (begin, end) of each piece's transfer, in nanoseconds."""
        return self._executor.input_spans()

    def output_spans(self) -> list[list[tuple[int, int]]]:
        """Returns, for each output, the (begin, end) of each piece's transfer, in nanoseconds."""
        return self._executor.output_spans()[: self.executable.num_outputs]

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Runs one call on whole batches and returns outputs in the structure of `forward`.

        Inputs that the model changes in place are written to.
        """
        self.check_idle()
        on_device = self._device_inputs(inputs)
        self._direct_call.is_running = True
        try:
            results = self._run(inputs, on_device)
        finally:
            self._direct_call.is_running = False
        return self._structured(results)

    def stream(
        self,
        inputs: Sequence[torch.Tensor],
        max_unread: int,
        *,
        are_kept: bool = False,
        at_end: Callable[[], None] | None = None,
    ) -> ResultStream:
        """Begins a call like `run`, and returns an iterator over the results of its iterations.

        Args:
            inputs: whole batches; they are copied, so that the caller may change them.
            max_unread: largest number of results that may wait for the reader.
            are_kept: whether the inputs stay unchanged during the call, so that no copy is needed.
            at_end: function called after a successful call whose results were read or dropped.

        Raises:
            Error: the device computes none of the model's outputs.
        """
        self.check_idle()
        executable = self.executable
        if executable.num_outputs == 0:
            raise make_error(
                "This model returns nothing that is computed on the device, so there are no "
                "results to stream. Call it instead."
            )
        step = executable.config.gradient_accumulation if executable.config.is_training else 1
        copies = self._device_inputs(inputs)
        if not are_kept:
            copies = [tensor.clone() for tensor in copies]
        self._executor.begin_stream(max_unread, step, executable.num_outputs)
        self._call = RunningCall(lambda: self._run(inputs, copies))
        return ResultStream(self._executor, self._call, self._structured, at_end)

    def _run(
        self, inputs: Sequence[torch.Tensor], on_device: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Runs one call; inputs that the model changes in place are written to."""
        executable = self.executable
        peers = self._peers
        with _ALONE if peers is None else peers.calling():
            start = time.perf_counter()
            try:
                results = self._executor.run(on_device, self.num_windows)
                self.call_seconds = time.perf_counter() - start
            except BaseException as error:
                self._host_calls.explain(error)
                raise
        num_own = executable.num_outputs + len(executable.written_inputs)
        if len(results) != num_own + len(executable.anchors):  # Possible with a forged file only.
            raise make_error(
                f"The program has {len(results)} results, but the model has "
                f"{num_own + len(executable.anchors)}: the program belongs to another model. "
                "Compile the model again."
            )
        self.after_call(self, results)
        if executable.anchors:
            self.anchored.update(zip(executable.anchors, results[num_own:], strict=True))
        if executable.written_inputs and self._synthetic is None:
            changed = results[executable.num_outputs : num_own]
            for number, value in zip(executable.written_inputs, changed, strict=True):
                self._write_back(value, inputs[number])
        return results

    def _write_back(self, value: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copies the rows that micro-batches and replicas changed to their places in an input.

        If several replicas read the same rows, the first replica's rows are copied.
        """
        config = self.executable.config
        if config.input_group_size > 1:
            groups = _input_groups(config)
            first = [groups.index(group) for group in range(config.num_input_groups)]
            num_micro_batches = config.batch_factor // config.num_input_groups
            num_values = tensor.numel() // config.batch_factor
            pieces = value.reshape(num_micro_batches, config.replication_factor, num_values)
            value = pieces[:, first].reshape(tensor.shape)
        with torch.no_grad():
            tensor.copy_(value)

    def _device_inputs(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        kind = self.executable.config.synthetic_data
        if kind is SyntheticData.OFF:
            return [_prepared(tensor) for tensor in inputs]
        if self._synthetic is None:
            self._synthetic = [_prepared(tensor) for tensor in synthetic_inputs(inputs, kind)]
        return self._synthetic

    @property
    def is_lost(self) -> bool:
        """Whether this process was forked in the middle of a call: no use of the device is left."""
        return self._direct_call.is_lost or (self._call is not None and self._call.is_lost)

    def check_idle(self) -> None:
        """Refuses to touch the device while a call is running."""
        if self.is_lost:
            raise make_error(
                "This process was forked while a call of the model was running in another thread: "
                "its device stays in the middle of that call. Call destroy() and wrap the model "
                "anew here, which begins with the weights that the host had, or fork when the call "
                "has ended and its stream is closed."
            )
        if self._call is not None and self._call.is_running:
            raise make_error(
                "The results of a call are being streamed. Read them to the end, or close the "
                "stream, before the model is used for anything else."
            )

    def _structured(self, results: Sequence[torch.Tensor]) -> Any:
        executable = self.executable
        leaves = without_backward(results[: executable.num_outputs])
        on_host = executable.host_outputs
        if on_host:
            device = iter(leaves)
            numbers = range(self._outputs.num_tensors)
            leaves = [on_host[index] if index in on_host else next(device) for index in numbers]
        return self._outputs.filled(leaves)

    def _read(self, variable: VariableInfo) -> torch.Tensor:
        """Returns the value of replica 0; of a grouped variable, one for each group or replica."""
        read = self._executor.read_variable
        if not variable.group_of_replica:
            return read(variable.index, 0)
        replicas = range(len(variable.group_of_replica))
        readers = replicas if variable.reads_all else variable.leaders
        return torch.stack([read(variable.index, replica) for replica in readers])

    def _write(self, variable: VariableInfo, tensor: torch.Tensor) -> None:
        """Writes each copy of a variable; a grouped one has a value for each group or replica."""
        value = tensor.detach().to(variable.dtype)
        groups = variable.group_of_replica
        replicas = range(self.executable.config.replication_factor)
        for replica in replicas if variable.is_per_replica else variable.leaders:
            part = value
            if groups:
                has_all = variable.reads_all and len(value) == len(groups)
                part = value[replica if has_all else groups[replica]]
            self._executor.write_variable(variable.index, replica, part)

    def replica_bytes(self, replica: int) -> int:
        """Returns the bytes of variables in one replica, with shared ones."""
        return self._executor.replica_bytes(replica)

    def peak_accumulator_bytes(self, replica: int) -> int:
        """Returns the peak bytes of gradients in one replica at the end of a window."""
        return self._executor.peak_accumulator_bytes(replica)


def _input_groups(config: CompileConfig) -> tuple[int, ...]:
    """Returns, for each replica, the group of rows that it reads in a micro-batch."""
    return group_of_replica(
        config.input_group_type, config.input_group_size, config.replication_factor
    )


def _prepared(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _NARROW and tensor.is_contiguous() and not tensor.requires_grad:
        return tensor
    value = tensor.detach()
    return value.to(_NARROW.get(value.dtype, value.dtype)).contiguous()
