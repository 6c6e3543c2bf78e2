"""Programs that hold IPUs: those that share variables take turns, and others lend theirs."""

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
from poptorch_emu.keras.optimizer_link import KerasOptimizerLink
from poptorch_emu.options import Options
from poptorch_emu.runtime import devices

_programs: weakref.WeakSet[DeviceProgram] = weakref.WeakSet()
_clock = itertools.count(1)


class DeviceProgram:
    """A program that holds IPUs from its first run on, until another one needs them.

    Attributes:
        executor: what runs it.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        variables: Iterable[Any],
        options: Options,
        link: KerasOptimizerLink | None,
    ) -> None:
        """Makes an executor, which compiles when it is first called.

        Args:
            module: what runs.
            variables: of Keras that are on the device meanwhile.
            options: of the executor.
            link: of the optimiser that trains them, if one does.
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
        """Keeps the IPUs while this runs.

        Programs that use one of these variables give theirs back before. If no IPUs are free, so
        does the one that has not run for the longest time.
        """
        for other in list(_programs):
            if other is not self and not self._variables.isdisjoint(other._variables):
                other.detach()
        with self._in_use:
            self._last_use = next(_clock)
            yield

    def prepare(self, inputs: Sequence[torch.Tensor]) -> None:
        """Compiles, or sends what changed on the host."""
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
        """Gives the IPUs back, if it has any; what was learnt comes home first.

        Returns:
            Whether it had.
        """
        if not (self.executor.isCompiled() and self.executor._is_attached):
            return False
        self.executor.detachFromDevice()
        return True

    def drop(self) -> None:
        """Brings all back and drops the program."""
        if self._link is not None:
            self._link.release()
        self.executor.destroy()


def _give_back_oldest() -> bool:
    """Makes the program give its IPUs back that has not run for the longest time.

    Returns:
        Whether there was one that does not run.
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
