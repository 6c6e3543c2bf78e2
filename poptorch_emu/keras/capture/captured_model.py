"""A Keras model as a PyTorch module that can be traced.

The module holds the model's variables as parameters, and its forward runs the model with the
tracer's stand-ins. Assignments of a layer are stored at once, so that they belong to the layer's
block. Seeds have no effect, because the device draws its own random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import keras
import torch
from keras.src.backend.torch import random as keras_random

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.batches import with_leaves
from poptorch_emu.keras.capture.capture_state import SendingCapture
from poptorch_emu.keras.capture.captured_update import CapturedUpdate
from poptorch_emu.keras.capture.device_values import form_of_value, is_of_device
from poptorch_emu.keras.capture.integers import with_upper_words, without_upper_words
from poptorch_emu.keras.capture.variable_scopes import ReadingScope, StoringScope
from poptorch_emu.keras.replacement import replaced_functions
from poptorch_emu.keras.stages.stage_plan import StagePlan
from poptorch_emu.keras.stages.staged_run import call_by_stages
from poptorch_emu.ops import identity_loss


class Use(Enum):
    """The purpose of a program."""

    TRAIN = "fit"
    TEST = "evaluate"
    PREDICT = "predict"

    @property
    def function(self) -> str:
        """Name of the model's attribute that holds the function for batches."""
        return f"{self.name.lower()}_function"

    @property
    def step(self) -> str:
        """Name of the model's method that a subclass may override for one batch."""
        return f"{self.name.lower()}_step"


class CapturedModel(torch.nn.Module):
    """Runs a Keras model on one micro-batch.

    Its forward takes the tensors of a batch as separate arguments. It returns the loss for training
    and testing, followed by the model's outputs one by one.

    Attributes:
        variables: variables of the model and of its update, by the names of the parameters.
        update: update by Keras's formula; `None` if the program has none, or ends with one.
    """

    def __init__(
        self,
        model: Any,
        use: Use,
        batch: Any,
        plan: StagePlan | None,
        *,
        returns_outputs: bool,
        loss_factor: float = 1,
        replicas: int = 1,
        update: CapturedUpdate | None = None,
    ) -> None:
        """Registers the variables of a model that is built.

        Args:
            model: Keras model.
            use: purpose of the program, which determines the loss and the mode of the layers.
            batch: (x, y, sample weights), as structures of tensors or `None`.
            plan: stages of a pipelined model; `None` for one stage.
            returns_outputs: whether forward returns the outputs in addition to the loss.
            loss_factor: factor of the loss at the start of back-propagation.
            replicas: number of replicas among which batches are divided.
            update: update by Keras's formula.
        """
        super().__init__()
        self._held = (model, plan)  # A tuple hides the model, which is also a torch module.
        self._use = use
        is_there = [leaf is not None for leaf in keras.tree.flatten(batch)]
        self._batch = keras.tree.pack_sequence_as(batch, [each or None for each in is_there])
        self._returns_outputs = returns_outputs
        self._loss_factor = loss_factor
        self._replicas = replicas
        self._seen: dict[str, Any] = {}  # Shared by the shallow copies that executors make.
        self.update = update
        self.variables = named_variables([*model.weights, *(update.variables if update else ())])
        for name, variable in self.variables.items():
            self.register_parameter(name, variable.value)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs the model, and its loss in the last stage."""
        model, plan = self._held
        update, device = self.update, tensors[0].device
        x, y, sample_weight = with_leaves(self._batch, tensors, bool)
        with (
            keras.device(str(device)),
            self._scope(device) as scope,
            device_random_numbers(),
            (sending := SendingCapture(self._replicas)).active(),
        ):
            is_training = self._use is Use.TRAIN
            flag = {"training": is_training} if model._call_has_training_arg else {}
            y_pred = call_by_stages(model, plan, x, **flag)
            self._seen["structure"] = keras.tree.map_structure(lambda _: 0, y_pred)
            self._seen["assigns"] = scope.has_stored
            outputs = tuple(keras.tree.flatten(y_pred))
            if self._use is Use.PREDICT:
                return self._checked((*outputs, *self._sent(sending)))
            loss = model._compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=is_training
            )
            outputs = (loss, *(outputs if self._returns_outputs else ()), *self._sent(sending))
            if isinstance(scope, ReadingScope) and update is not None:
                position = tensors[-1].reshape(()) if update.accumulation > 1 else None
                update.run(scope, loss, position)
                outputs = tuple(each.detach().clone() for each in outputs)
                scope.store_all()
                self._seen["assigns"] = True
            elif is_training:
                identity_loss(loss * self._loss_factor, "none")
        return self._checked(outputs)

    def _checked(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        self._seen["are_long"] = [each.dtype is torch.int64 for each in outputs]
        return tuple(with_upper_words(outputs))

    def checked_results(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the results of a run, after a check that integers fit 32 bits."""
        return without_upper_words(results, self._seen["are_long"])

    def _scope(self, device: torch.device) -> StoringScope:
        """Returns a scope that gives variables the tracer's values."""
        values = {name: getattr(self, name) for name in self.variables}
        losses = self._held[0]._compile_loss
        # The host updates the variables of the single losses' metrics.
        arguments = self.variables, values, device, () if losses is None else losses.variables
        if self.update is None:
            return StoringScope(*arguments)
        return ReadingScope({}, self.update.counts, *arguments, self.update.trained)

    def _sent(self, sending: SendingCapture) -> list[torch.Tensor]:
        """Records the queues that receive values, and returns the tensors to send."""
        sent = sending.outermost.sent
        self._seen["sent"] = [
            (queue, keras.tree.map_structure(form_of_value, x)) for queue, x in sent
        ]
        leaves = keras.tree.flatten([value for _, value in sent])
        return [leaf.detach() for leaf in filter(is_of_device, leaves)]

    def send(self, results: list[torch.Tensor], steps: int, replicas: int) -> None:
        """Passes tensors from the end of `results` to the queues that the model chose for them."""
        for queue, form in reversed(self._seen["sent"]):
            leaves = list(filter(is_of_device, keras.tree.flatten(form)))
            taken = [results.pop() for _ in leaves][::-1]
            queue.expect(form, replicas)
            queue.put(
                steps,
                [x.reshape(steps, replicas, *y.shape) for x, y in zip(taken, leaves, strict=True)],
            )

    @property
    def assigns(self) -> bool:
        """Whether a layer assigned to a variable when the model was traced."""
        return bool(self._seen["assigns"])

    def packed_outputs(self, outputs: Sequence[torch.Tensor]) -> Any:
        """Returns outputs in the structure that the model returned when it was traced."""
        return keras.tree.pack_sequence_as(self._seen["structure"], outputs)


def named_variables(variables: Sequence[Any]) -> dict[str, Any]:
    """Returns variables by names that are valid for parameters in PyTorch."""
    named: dict[str, Any] = {}
    for variable in variables:
        path = name = variable.path.replace(".", "_")
        number = 1
        while name in named:
            number += 1
            name = f"{path}_{number}"
        named[name] = variable
    return named


@contextmanager
def device_random_numbers() -> Iterator[None]:
    """Makes Keras draw random numbers without a generator, so that the device draws them."""
    names = {"torch_seed_generator": lambda _, seed: None, "draw_seed": _refuse_seed}
    with replaced_functions(keras_random, **names):
        yield


def _refuse_seed(draw: Any, seed: Any) -> Any:
    raise compiler_error(
        "The device has no random numbers with the distributions gamma, beta and binomial of "
        "keras.random. Draw them on the host and pass them as an input."
    )
