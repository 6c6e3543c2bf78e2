"""One program of a Keras model: an executor for a number of batches with one form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poptorch_emu.keras.capture.batches import Batch, joined, tensors_of
from poptorch_emu.keras.capture.captured_model import CapturedModel, Use
from poptorch_emu.keras.capture.device_program import DeviceProgram
from poptorch_emu.keras.capture.tensorflow_variables import begin_run, counterpart, end_run
from poptorch_emu.keras.optimizers.optimizer_link import KerasOptimizerLink
from poptorch_emu.options import Options


class KerasProgram(DeviceProgram):
    """Runs batches on virtual IPUs.

    Attributes:
        use: purpose of the program.
        steps: number of batches that a call takes.
        replicas: number of replicas among which the batches are divided, in turn.
    """

    def __init__(
        self,
        module: CapturedModel,
        use: Use,
        steps: int,
        options: Options,
        optimizer: Any = None,
        updates: int = 0,
    ) -> None:
        """Creates the program for a model.

        Args:
            module: captured model.
            use: purpose of the program.
            steps: number of batches that a call takes.
            options: options of the executor.
            optimizer: built optimiser of Keras, for training.
            updates: number of updates that a call makes.
        """
        link = None
        if optimizer is not None and module.update is None:
            trained = {name: each for name, each in module.variables.items() if each.trainable}
            link = KerasOptimizerLink(optimizer, trained, updates)
        super().__init__(module, module.variables.values(), options, link)
        update = module.update
        self._counts = [] if update is None else list(map(counterpart, update.counts))
        self.use = use
        self.steps = steps
        self.replicas = int(options.replication_factor)
        self._module = module

    def run(self, batches: Sequence[Batch]) -> tuple[Batch, Any, Any]:
        """Runs batches that have the form of the compiled batches.

        Returns:
            (all batches joined to one, loss of each batch or `None` for predictions, outputs for
            all batches or `None` if they were not requested).
        """
        whole = joined(batches)
        tensors = tensors_of(whole)
        if self._module.update is not None:
            tensors += self._module.update.positions(self.steps)
        with self.on_device():
            begin_run(self._counts)
            self.prepare(tensors)
            try:
                results = list(self.executor(*tensors))
            finally:
                if self._link is not None:
                    self._link.finish()
            if self._link is None and self._module.assigns:
                self.executor.copyWeightsToHost()
            end_run(self._counts)
        results = self._module.checked_results(results)
        self._module.send(results, self.steps // self.replicas, self.replicas)
        losses = None if self.use is Use.PREDICT else results.pop(0).reshape(-1)
        return whole, losses, self._module.packed_outputs(results) if results else None
