"""Counts the work of a call: all of it, or the part completed before the call failed."""

from __future__ import annotations

from poptorch_emu.executor.executor import PoplarExecutor


class RunCount:
    """Counts the micro-batches of one replica in a call of an executor.

    The counter is that of the device's random numbers, which leaves failed updates out.
    """

    def __init__(self, executor: PoplarExecutor) -> None:
        """Begins to count before a call of a compiled executor."""
        self._executor = executor
        self._before = self._counter()

    def micro_batches(self) -> int:
        """Returns how many micro-batches have run, without those of failed updates."""
        return self._counter() - self._before

    def updates(self) -> int:
        """Returns how many updates these micro-batches made."""
        return self.micro_batches() // self._executor._compiled().config.gradient_accumulation

    def _counter(self) -> int:
        return int(self._executor.rng_state[1])
