"""One program of a function: an executor for a number of iterations."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import torch

from poptorch_emu.keras.capture.device_program import DeviceProgram
from poptorch_emu.keras.capture.tensorflow_variables import begin_run, counterpart, end_run
from poptorch_emu.keras.optimizers.optimizer_link import KerasOptimizerLink
from poptorch_emu.keras.optimizers.wrapped_optimizers import merged
from poptorch_emu.keras.settings.run_settings import ModelSettings, SystemSettings, executor_options
from poptorch_emu.keras.tensorflow.loops.discovery import Discovered, loop_values
from poptorch_emu.keras.tensorflow.loops.function_module import CapturedFunction
from poptorch_emu.keras.tensorflow.loops.function_results import FunctionResults
from poptorch_emu.keras.tensorflow.loops.infeed import Element, Infeed, stacked
from poptorch_emu.runtime.stream import ResultStream

# A run that reads data is divided into pieces, so that the host reads one while the device runs
# another. If possible, a piece has at least _FEWEST_ITERATIONS, and no more than _MOST_INPUT_BYTES.
_MOST_PIECES = 5
_FEWEST_ITERATIONS = 50
_WANTED_INPUT_BYTES = 2**24
_MOST_INPUT_BYTES = 2**28

# Interval between two checks for results. Waking a thread in each iteration would take longer than
# a short iteration.
_LINGER_SECONDS = 1e-3


class FunctionProgram(DeviceProgram):
    """Runs a function on virtual IPUs."""

    def __init__(self, module: CapturedFunction, system: SystemSettings, replicas: int) -> None:
        """Creates an executor, which compiles when it is first called.

        Args:
            module: captured function.
            system: settings of the process's `IPUConfig`.
            replicas: number of replicas that run the function, each on one IPU.
        """
        self._module = module
        self._discovered = module.discovered
        self._replicas = replicas
        update = module.discovered.body.update
        settings = settings_of_update(module.discovered)
        self._accumulation = settings.accumulation
        self._per_call = _iterations_of_call(module.discovered, replicas, self._accumulation)
        reads = module.discovered.body.reads
        # Two sets of memory for the data, used in turn: one call runs while the next one is read.
        self._places: tuple[dict[int, list[np.ndarray]], ...] = ({}, {})
        self._counts = {each: self._per_call * replicas * reads.count(each) for each in reads}
        self._of_tensorflow = [
            each for each in module.variables.values() if hasattr(each, "of_tensorflow")
        ]
        options = executor_options(
            system,
            settings,
            None,
            self._per_call * replicas,
            replicas=replicas,
            is_training=update is not None,
        )
        link = None
        if update is not None:
            link = KerasOptimizerLink(
                update.optimizer, module.trained, self._per_call // self._accumulation
            )
        super().__init__(module, module.variables.values(), options, link)

    def run(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Runs the function with the tensors among its arguments, and returns its result.

        Raises:
            OutOfRangeError: an iterator of TensorFlow has too few elements.
        """
        with self.on_device():
            return self._run(tensors)

    def _run(self, tensors: Sequence[torch.Tensor]) -> Any:
        begin_run(self._of_tensorflow)
        iterations = self._discovered.iterations
        for infeed in self._counts:
            infeed.begin_run()
        for infeed, count in self._counts.items():
            infeed.check(count * (iterations // self._per_call))
        results: FunctionResults | None = None
        try:
            following: _Taken | None = self._taken(0)
            for call in range(iterations // self._per_call):
                assert following is not None
                taken, following = following, None
                stream = self._begun(call, taken, tensors)
                if results is None:
                    results = FunctionResults(self._module, self._replicas, self._accumulation)
                is_last = (call + 1) * self._per_call == iterations
                try:
                    following = self._read(stream, results, None if is_last else call + 1)
                except BaseException:
                    self._put_rest_back(taken)
                    raise
                finally:
                    if self._link is not None:
                        self._link.finish()
        finally:
            if results is not None:  # Completed iterations count, even if later ones failed.
                self._bring_variables_home()
        return None if results is None else results.returned()

    def _begun(self, call: int, taken: _Taken, tensors: Sequence[torch.Tensor]) -> ResultStream:
        """Begins one call of a run; if that fails, its elements are put back."""
        try:
            inputs = self._inputs(call, taken, tensors)
            self.prepare(inputs)
            return self.executor._stream(
                tuple(inputs), {}, max_unread=self._per_call + 1, are_kept=True
            )
        except BaseException:
            taken.put_back()
            raise

    def _read(
        self, stream: ResultStream, results: FunctionResults, next_call: int | None
    ) -> _Taken | None:
        """Passes the results of a call on as they arrive, and returns the next call's elements.

        Args:
            stream: stream of the results of the current call.
            results: receiver of the results.
            next_call: number of the next call; `None` if this is the last one.
        """
        following: _Taken | None = None
        fault: BaseException | None = None
        try:
            with stream:
                try:
                    if next_call is None:  # Further elements belong to the next run.
                        early = [each for each in self._counts if each.may_be_read_early]
                        self._read_on(early, stream, results)
                    else:
                        self._read_on(self._counts, stream, results)
                        following = self._taken(next_call)
                except BaseException as error:  # First the running call completes.
                    fault = error
                for bundle in stream.bundles(_LINGER_SECONDS):
                    results.take(*bundle)
        except BaseException:
            if following is not None:
                following.put_back()
            raise
        if fault is not None:
            raise fault
        return following

    def _put_rest_back(self, taken: _Taken) -> None:
        """Puts back the elements of a call that follow the update that failed."""
        if self._link is None:
            return  # Without updates, the iteration that failed is not known.
        for infeed, each in taken.elements.items():
            num_used = self._link.num_micro_batches() + self._accumulation
            infeed.put_back(each[num_used * len(each) // self._per_call :])

    def _bring_variables_home(self) -> None:
        """Copies assigned variables to the host."""
        assigned = self._discovered.variables.assigned
        if self._link is None and assigned:
            self.executor.copyWeightsToHost()
        counts = {id(counterpart(each)) for each in self._module.counts}
        end_run([each for each in self._of_tensorflow if id(each) in assigned.keys() | counts])

    def _read_on(
        self, infeeds: Iterable[Infeed], stream: ResultStream, results: FunctionResults
    ) -> None:
        """Reads elements for the next call, as far as they exist, while a call is running."""
        looked = time.monotonic()
        for infeed in infeeds:
            for number in range(infeed.num_held, self._counts[infeed]):
                if not infeed.has(number + 1):
                    break
                if time.monotonic() - looked >= _LINGER_SECONDS:
                    for bundle in stream.complete():
                        results.take(*bundle)
                    looked = time.monotonic()

    def _inputs(
        self, call: int, taken: _Taken, tensors: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Returns the inputs of a call: for each iteration, the values of all replicas in order."""
        count, replicas = self._per_call, self._replicas
        is_first = torch.zeros(count * replicas, dtype=torch.bool)
        is_first[:replicas] = call == 0
        here = slice(call * count, (call + 1) * count)
        counters = [each[here] for each in _counters(self._discovered)]
        given = (*tensors, *(each.value.detach() for each in self._module.integers))
        repeated = [*counters, *(each.expand(count, *each.shape) for each in given)]
        repeated = [each.repeat_interleave(replicas, 0) for each in repeated]
        inputs = [is_first, *taken.inputs, *repeated]
        return [each.flatten(0, 1) if each.dim() > 1 else each for each in inputs]

    def _taken(self, call: int) -> _Taken:
        """Takes the elements of all infeeds for a call of a run, or none of them."""
        for infeed, count in self._counts.items():
            infeed.hold(count)
        taken = _Taken({infeed: infeed.take(count) for infeed, count in self._counts.items()})
        try:
            taken.inputs.extend(self._stacked(call, taken.elements))
        except BaseException:
            taken.put_back()
            raise
        return taken

    def _stacked(self, call: int, elements: Mapping[Infeed, list[Element]]) -> list[torch.Tensor]:
        """Returns the tensors for each next() of an iteration, in one call of a run."""
        reads, inputs = self._discovered.body.reads, []
        for number, infeed in enumerate(reads):
            turn, turns = reads[:number].count(infeed), reads.count(infeed)
            mine = [
                element
                for index, element in enumerate(elements[infeed])
                if index // self._replicas % turns == turn
            ]
            inputs += stacked(mine, self._places[call % 2].setdefault(number, []))
        return inputs


@dataclass(frozen=True)
class _Taken:
    """The elements that one call of a run takes from its infeeds.

    Attributes:
        elements: all elements of each infeed, in order.
        inputs: tensors for each next() of an iteration.
    """

    elements: Mapping[Infeed, list[Element]]
    inputs: list[torch.Tensor] = field(default_factory=list)

    def put_back(self) -> None:
        """Puts the elements back, so that they are the next ones of their infeeds."""
        for infeed, each in self.elements.items():
            infeed.put_back(each)


def settings_of_update(discovered: Discovered) -> ModelSettings:
    """Returns the settings for training that wrappers of the function's optimiser requested.

    Raises:
        ValueError: the number of iterations is not a multiple of the iterations of an update.
    """
    if discovered.body.update is None:
        return ModelSettings()
    settings = merged(ModelSettings(), discovered.body.update.optimizer)
    if discovered.iterations % settings.accumulation:
        raise ValueError(
            f"A loop on the IPU makes {discovered.iterations} iterations, but an update of its "
            f"optimizer takes {settings.accumulation}. Let it make a multiple of them."
        )
    return settings


def _iterations_of_call(discovered: Discovered, replicas: int, accumulation: int) -> int:
    """Returns how many iterations one call of the executor makes, a multiple of an update's.

    A call has one learning rate, so with a learning rate schedule it makes only one update.
    """
    update, iterations = discovered.body.update, discovered.iterations
    schedule = keras.optimizers.schedules.LearningRateSchedule
    if update is not None and isinstance(update.optimizer._learning_rate, schedule):
        return accumulation
    num_bytes = replicas * sum(infeed.num_bytes for infeed in discovered.body.reads)
    if not num_bytes:
        return iterations
    wanted = max(iterations // _MOST_PIECES, _FEWEST_ITERATIONS)
    wanted = min(wanted, max(_WANTED_INPUT_BYTES // num_bytes, accumulation), iterations)
    multiples = range(accumulation, iterations + 1, accumulation)
    divisors = [n for n in multiples if iterations % n == 0]
    enough = next(n for n in divisors if n >= wanted)
    if enough == wanted or enough * num_bytes <= _MOST_INPUT_BYTES:
        return enough
    return max((n for n in divisors if n <= wanted), default=divisors[0])


def _counters(discovered: Discovered) -> list[torch.Tensor]:
    """Returns the values of the used loop variables in all iterations."""
    found, inner = [], discovered.iterations
    for loop in discovered.loops:
        inner //= len(loop.values)
        if loop.ordinal in discovered.used_counters:
            outer = discovered.iterations // inner // len(loop.values)
            values = loop_values(loop.values)
            found.append(values.repeat_interleave(inner).repeat(outer))
    return found
