"""A function as a PyTorch module that can be traced: one iteration of its loop.

The module holds the variables of Keras that the function uses, and the values that its loop hands
on from one iteration to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import torch

from poptorch_emu.keras.capture.captured_model import device_random_numbers, named_variables
from poptorch_emu.keras.capture.device_values import form_of_value, is_of_device, read_variables
from poptorch_emu.keras.capture.integers import as_state, with_upper_words
from poptorch_emu.keras.capture.python_state import PythonState
from poptorch_emu.keras.capture.symbolic_values import entered, in_graph
from poptorch_emu.keras.capture.tensorflow_variables import counterpart
from poptorch_emu.keras.capture.variable_scopes import ReadingScope
from poptorch_emu.keras.tensorflow.loops.captured_calls import captured_calls, recording
from poptorch_emu.keras.tensorflow.loops.discovery import Discovered
from poptorch_emu.keras.tensorflow.loops.iteration import Iteration
from poptorch_emu.ops import identity_loss


class CapturedFunction(torch.nn.Module):
    """Runs one iteration of a function.

    Its forward takes a flag that is set in the first iteration, the tensors of the elements that
    the iteration reads, the variables of its loops if they are used, the tensors among the
    arguments, and Keras's integer variables. It returns, as separate outputs, the loss of a
    training function, the tensors of the result, and the tensors for queues.

    Attributes:
        variables: variables of Keras, by the names of the parameters.
        trained: variables that an optimiser updates.
        integers: integer variables that are only read; their values are inputs of each run.
        counts: integer variables that are assigned.
        discovered: result of the function's first run.
        forms: structure of the result and of the values sent, without elements.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Any,
        discovered: Discovered,
        replicas: int,
        python: PythonState,
        loss_factor: float = 1,
    ) -> None:
        """Registers the variables of the function.

        Args:
            function: Python function.
            arguments: (positional arguments, keyword arguments), with tensors of PyTorch.
            discovered: result of the function's first run.
            replicas: number of replicas among which elements are divided.
            python: objects of Python that the function can change.
            loss_factor: factor of the loss at the start of back-propagation.
        """
        super().__init__()
        self._loss_factor = loss_factor
        self.discovered = discovered
        self._held = (function, arguments)
        self._replicas, self._python = replicas, python
        self._traced: dict[str, Any] = {}  # Shared by the shallow copies that executors make.
        update = discovered.body.update
        trained = {} if update is None else {id(each): each for each in update.variables}
        used = {id(each): each for each in discovered.variables.used if not _is_seed(each)}
        assigned = discovered.variables.assigned
        self.counts = [x for x in used.values() if not _is_floating(x) and id(x) in assigned]
        for each in self.counts:
            del used[id(each)]
            standing_in = counterpart(each)
            used[id(standing_in)] = standing_in
        self.integers = [each for each in used.values() if not _is_floating(each)]
        for each in self.integers:
            del used[id(each)]
        self.variables = named_variables(list(used.values()))
        self.trained = {name: each for name, each in self.variables.items() if id(each) in trained}
        for name, variable in self.variables.items():
            self.register_parameter(name, variable.value)
        self._states: list[str] = []
        for number, leaf in enumerate(discovered.handed_on):
            state = torch.nn.Parameter(as_state(torch.zeros_like(leaf)), requires_grad=False)
            self._states.append(f"handed_on_{number}")
            self.register_parameter(self._states[-1], state)

    @property
    def forms(self) -> tuple[Any, list[Any]]:
        """The forms of (result, values for each queue); see the class."""
        return self._traced["forms"]  # type: ignore[no-any-return]

    def forward(self, is_first: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs the function."""
        function, (args, kwargs) = self._held
        device = is_first.device
        states = [getattr(self, name) for name in self._states]
        iteration = Iteration(
            self.discovered, self._replicas, is_first, tensors, states, self._python
        )
        args, kwargs = iteration.with_own_tensors((args, kwargs))
        integers = [each.value for each in self.integers]
        given = dict(zip(map(id, self.integers), iteration.with_own_tensors(integers), strict=True))
        values = {name: getattr(self, name) for name in self.variables}
        with (
            iteration.active(),
            captured_calls(function),
            keras.device(str(device)),
            ReadingScope(
                given, self.counts, self.variables, values, device, (), self.trained.values()
            ) as scope,
            device_random_numbers(),
            recording(),
            in_graph(),
            self._python.watching(),
            self._python.repetition(self._python.start),
        ):
            result = read_variables(function(*entered(args), **entered(kwargs)))
        outputs = self._outputs(iteration, result, device)
        if scope.has_pending:  # Outputs may alias variables whose new values are stored below.
            outputs = [each.clone() for each in outputs]
        scope.store_all()
        return tuple(outputs)

    def _outputs(
        self, iteration: Iteration, result: Any, device: torch.device
    ) -> list[torch.Tensor]:
        body = iteration.body()
        sent = [value for _, value in body.sent]
        self._traced["forms"] = keras.tree.map_structure(form_of_value, (result, sent))
        leaves = filter(is_of_device, keras.tree.flatten((result, sent)))
        outputs = [x.detach().to(device) for x in leaves]
        if body.update is not None:
            identity_loss(body.update.loss * self._loss_factor, "none")
            outputs.insert(0, body.update.loss)
        return with_upper_words(outputs or [torch.zeros((), device=device)])


def _is_floating(variable: Any) -> bool:
    return "float" in keras.backend.standardize_dtype(variable.dtype)


def _is_seed(variable: Any) -> bool:
    """Returns whether a variable is a random generator's state, which the device has itself."""
    return bool(variable.name == "seed_generator_state")
