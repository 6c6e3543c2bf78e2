"""One program of a Keras model: an executor for so many steps with batches of one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.executor.executor_contents import has_edited_weights
from poptorch_emu.executor.factories import inferenceModel, trainingModel
from poptorch_emu.keras.batches import Batch, joined, tensors_of
from poptorch_emu.keras.capture import CapturedModel, Use
from poptorch_emu.keras.device_users import DeviceUser, give_back
from poptorch_emu.keras.optimizer_link import KerasOptimizerLink
from poptorch_emu.options import Options


class KerasProgram(DeviceUser):
    """Runs batches on virtual IPUs.

    Attributes:
        use: what for.
        steps: how many batches a call takes.
        replicas: among which they are divided, in turn.
    """

    def __init__(self, module: CapturedModel, use: Use, steps: int, options: Options) -> None:
        """Takes the model for testing or predicting; `train` is for training."""
        super().__init__(module.variables.values())
        self.use = use
        self.steps = steps
        self.replicas = int(options.replication_factor)
        self._module = module
        self._options = options
        self._link: KerasOptimizerLink | None = None
        self._executor: PoplarExecutor | None = None
        if use is not Use.TRAIN:
            self._executor = inferenceModel(module, options)

    @property
    def executor(self) -> PoplarExecutor | None:
        """What runs the batches; `None` before it is known what for."""
        return self._executor

    def train(self, optimizer: Any, updates: int) -> None:
        """Makes calls train.

        Args:
            optimizer: of Keras, built.
            updates: how many a call makes.
        """
        trained = trained_variables(self._module)
        self._link = KerasOptimizerLink(optimizer, trained, updates)
        self._executor = trainingModel(self._module, self._options, self._link.optimizer)

    def run(self, batches: Sequence[Batch]) -> tuple[Batch, Any, Any]:
        """Runs batches of the form that the program was made for.

        Returns:
            The batches as one; the loss of each, `None` for predictions; the model's outputs for
            all, `None` if they were not wanted.
        """
        with self.on_device():
            return self._run(batches)

    def _run(self, batches: Sequence[Batch]) -> tuple[Batch, Any, Any]:
        executor = self._executor
        assert executor is not None, "a program is for training or not"
        whole = joined(batches)
        tensors = tensors_of(whole)
        if not executor.isCompiled():
            executor.compile(*tensors)
            if self._link is not None:
                self._link.start(executor)
        elif executor.isAttachedToDevice() and has_edited_weights(executor):
            executor.copyWeightsToDevice()
        if self._link is not None:
            self._link.prepare()
        try:
            results = list(executor(*tensors))
        finally:
            if self._link is not None:
                self._link.finish()
        self._module.send(results, self.steps // self.replicas, self.replicas)
        losses = None if self.use is Use.PREDICT else results.pop(0).reshape(-1)
        return whole, losses, self._module.packed_outputs(results) if results else None

    def detach(self) -> bool:
        """Gives the IPUs to another program; what was learnt comes back first."""
        return self._executor is not None and give_back(self._executor)

    def drop(self) -> None:
        """Brings all back and drops the program."""
        if self._link is not None:
            self._link.release()
        if self._executor is not None:
            self._executor.destroy()


def trained_variables(module: CapturedModel) -> Mapping[str, Any]:
    """Returns the variables that are trained by their names."""
    return {name: each for name, each in module.variables.items() if each.trainable}
