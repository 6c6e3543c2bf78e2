"""One program of a function: an executor for so many iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import torch

from poptorch_emu.executor.executor_contents import has_edited_weights
from poptorch_emu.executor.factories import inferenceModel, trainingModel
from poptorch_emu.keras.device_users import DeviceUser
from poptorch_emu.keras.loops.discovery import Discovered, loop_values
from poptorch_emu.keras.loops.function_module import CapturedFunction
from poptorch_emu.keras.loops.function_results import FunctionResults
from poptorch_emu.keras.loops.infeed import Element, Infeed, stacked
from poptorch_emu.keras.loops.tensorflow_variables import begin_run, end_run
from poptorch_emu.keras.optimizer_link import KerasOptimizerLink
from poptorch_emu.keras.run_settings import ModelSettings, SystemSettings, executor_options

# More than this at once is read in pieces.
_MOST_INPUT_BYTES = 2**28


class FunctionProgram(DeviceUser):
    """Runs a function on virtual IPUs."""

    def __init__(self, module: CapturedFunction, system: SystemSettings, replicas: int) -> None:
        """Makes an executor, which compiles when it is first called.

        Args:
            module: the function.
            system: what the process's `IPUConfig` says.
            replicas: how many run the function, each on an IPU.
        """
        super().__init__(module.variables.values())
        self._module = module
        self._discovered = module.discovered
        self._replicas = replicas
        self._per_call = _iterations_of_call(module.discovered, replicas)
        self._of_tensorflow = [
            each for each in module.variables.values() if hasattr(each, "of_tensorflow")
        ]
        update = module.discovered.body.update
        options = executor_options(
            system,
            ModelSettings(),
            None,
            self._per_call * replicas,
            replicas=replicas,
            is_training=update is not None,
        )
        self._link: KerasOptimizerLink | None = None
        if update is None:
            self._executor = inferenceModel(module, options)
        else:
            self._link = KerasOptimizerLink(update.optimizer, module.trained, self._per_call)
            self._executor = trainingModel(module, options, self._link.optimizer)

    def run(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Runs the function on the tensors among its arguments, and returns what it returns.

        Raises:
            OutOfRangeError: of TensorFlow; an iterator has not enough elements.
        """
        self.take_device()
        begin_run(self._of_tensorflow)
        for infeed in self._discovered.body.reads:
            infeed.begin_run()
        results: FunctionResults | None = None
        for first in range(0, self._discovered.iterations, self._per_call):
            elements = self._elements()
            try:
                inputs = self._inputs(first, elements, tensors)
                self._prepare(inputs)
            except BaseException:
                for infeed, each in elements.items():
                    infeed.put_back(each)
                raise
            results = results or FunctionResults(self._module, self._replicas)
            self._call(inputs, results)
        assigned = self._discovered.variables.assigned
        if self._link is None and assigned:
            self._executor.copyWeightsToHost()
        end_run([each for each in self._of_tensorflow if id(each) in assigned])
        return None if results is None else results.returned()

    def detach(self) -> None:
        """Gives the IPUs to another program; what was learnt comes back first."""
        if self._executor.isCompiled() and self._executor.isAttachedToDevice():
            self._executor.detachFromDevice()

    def drop(self) -> None:
        """Brings all back and drops the program."""
        if self._link is not None:
            self._link.release()
        self._executor.destroy()

    def _prepare(self, inputs: Sequence[torch.Tensor]) -> None:
        """Compiles, or sends what changed on the host."""
        executor, link = self._executor, self._link
        if not executor.isCompiled():
            executor.compile(*inputs)
            if link is not None:
                link.start(executor)
        elif executor.isAttachedToDevice() and has_edited_weights(executor):
            executor.copyWeightsToDevice()
        if link is not None:
            link.prepare()

    def _call(self, inputs: Sequence[torch.Tensor], results: FunctionResults) -> None:
        """Runs some iterations, and hands their results over as they come."""
        with self._executor._stream(tuple(inputs), {}, max_unread=self._per_call) as stream:
            for outputs in stream:
                results.take(outputs)
        if self._link is not None:
            self._link.finish()

    def _inputs(
        self, first: int, elements: Mapping[Infeed, list[Element]], tensors: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Returns what the iterations of a call take, those of all replicas after one another."""
        count, replicas = self._per_call, self._replicas
        is_first = torch.zeros(count * replicas, dtype=torch.bool)
        is_first[:replicas] = first == 0
        counters = [each[first : first + count] for each in _counters(self._discovered)]
        repeated = [*counters, *(each.expand(count, *each.shape) for each in tensors)]
        read = self._read(elements)
        inputs = [is_first, *read, *(each.repeat_interleave(replicas, 0) for each in repeated)]
        return [each.flatten(0, 1) if each.dim() > 1 else each for each in inputs]

    def _elements(self) -> dict[Infeed, list[Element]]:
        """Takes the elements of all infeeds for a call, or none."""
        reads = self._discovered.body.reads
        counts = {infeed: self._per_call * self._replicas * reads.count(infeed) for infeed in reads}
        for infeed, count in counts.items():
            infeed.hold(count)
        return {infeed: infeed.take(count) for infeed, count in counts.items()}

    def _read(self, elements: Mapping[Infeed, list[Element]]) -> list[torch.Tensor]:
        """Returns what each next() of an iteration gets."""
        reads, inputs = self._discovered.body.reads, []
        for number, infeed in enumerate(reads):
            turn, turns = reads[:number].count(infeed), reads.count(infeed)
            inputs += stacked(
                [
                    element
                    for index, element in enumerate(elements[infeed])
                    if index // self._replicas % turns == turn
                ]
            )
        return inputs


def _iterations_of_call(discovered: Discovered, replicas: int) -> int:
    """Returns how many iterations one call of the executor makes.

    Each has the learning rate of its beginning, so that a schedule allows for one only.
    """
    update, iterations = discovered.body.update, discovered.iterations
    schedule = keras.optimizers.schedules.LearningRateSchedule
    if update is not None and isinstance(update.optimizer._learning_rate, schedule):
        return 1
    num_bytes = replicas * sum(infeed.num_bytes for infeed in discovered.body.reads)
    limit = max(_MOST_INPUT_BYTES // max(num_bytes, 1), 1)
    return max(n for n in range(1, min(limit, iterations) + 1) if iterations % n == 0)


def _counters(discovered: Discovered) -> list[torch.Tensor]:
    """Returns the values of the variables of loops, as far as they are used, in all iterations."""
    found, inner = [], discovered.iterations
    for loop in discovered.loops:
        inner //= len(loop.values)
        if loop.ordinal in discovered.used_counters:
            outer = discovered.iterations // inner // len(loop.values)
            values = loop_values(loop.values)
            found.append(values.repeat_interleave(inner).repeat(outer))
    return found
