"""Programs that hold IPUs: programs with shared variables take turns, others lend their IPUs."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from poptorch_emu.executor.executor_contents import has_edited_weights
from poptorch_emu.executor.factories import inferenceModel, trainingModel
from poptorch_emu.keras.optimizers.optimizer_link import KerasOptimizerLink
from poptorch_emu.options import Options
from poptorch_emu.runtime import devices

_programs: weakref.WeakSet[DeviceProgram] = weakref.WeakSet()
_clock = itertools.count(1)


class DeviceProgram:
    """A program that holds IPUs from its first run until another program needs them.

    Attributes:
        executor: executor of the program.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        variables: Iterable[Any],
        options: Options,
        link: KerasOptimizerLink | None,
    ) -> None:
        """Creates an executor, which compiles when it is first called.

        Args:
            module: module to run.
            variables: variables of Keras that are on the device while the program holds IPUs.
            options: options of the executor.
            link: link of the optimiser that trains the variables; `None` for inference.
        """
        self._variables = {id(variable) for variable in variables}
        self._link = link
        self.executor = (
            inferenceModel(module, options)
            if link is None
            else trainingModel(module, options, link.optimizer)
        )
        self._last_use = 0
        self._in_use = threading.RLock()
        _programs.add(self)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Keeps the IPUs during the context.

        Programs that share a variable with this one release their IPUs first. If no IPUs are free,
        the program that has not run for the longest time releases its IPUs, too.
        """
        for other in list(_programs):
            if other is not self and not self._variables.isdisjoint(other._variables):
                other.detach()
        with self._in_use:
            self._last_use = next(_clock)
            yield

    def prepare(self, inputs: Sequence[torch.Tensor]) -> None:
        """Compiles the program, or sends the changes of the host to the device."""
        executor, link = self.executor, self._link
        if not executor.isCompiled():
            executor.compile(*inputs)
            if link is not None:
                link.start(executor)
        elif executor.isAttachedToDevice() and has_edited_weights(executor):
            executor.copyWeightsToDevice()
        if link is not None:
            link.prepare()

    def detach(self) -> bool:
        """Releases the IPUs, if the program holds any; trained values return to the host first.

        Returns:
            Whether the program held IPUs.
        """
        if not (self.executor.isCompiled() and self.executor._is_attached):
            return False
        self.executor.detachFromDevice()
        return True

    def drop(self) -> None:
        """Returns all values to the host and destroys the program."""
        if self._link is not None:
            self._link.release()
        self.executor.destroy()


def _give_back_oldest() -> bool:
    """Makes the idle program that has not run for the longest time release its IPUs.

    Returns:
        Whether any program released IPUs.
    """
    for program in sorted(_programs, key=lambda program: program._last_use):
        if program._in_use.acquire(blocking=False):
            try:
                if program.detach():
                    return True
            finally:
                program._in_use.release()
    return False


devices.add_lender(_give_back_oldest)
