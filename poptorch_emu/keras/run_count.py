"""How much of a call counts: all of it, or what was complete before it failed."""

from __future__ import annotations

from poptorch_emu.executor.executor import PoplarExecutor


class RunCount:
    """Counts the micro-batches of one replica in a call of an executor.

    The device counts them for its random numbers, without those of an update that failed.
    """

    def __init__(self, executor: PoplarExecutor) -> None:
        """Begins to count: the call follows. The executor is compiled."""
        self._executor = executor
        self._before = self._counter()

    def micro_batches(self) -> int:
        """Returns how many have run and count."""
        return self._counter() - self._before

    def updates(self) -> int:
        """Returns how many updates were made of them."""
        return self.micro_batches() // self._executor._compiled().config.gradient_accumulation

    def _counter(self) -> int:
        return int(self._executor.rng_state[1])
