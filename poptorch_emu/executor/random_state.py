"""How an executor keeps the state of its random numbers, on the device and without one."""

from __future__ import annotations

from poptorch_emu.errors import compiler_error
from poptorch_emu.executor.executor_state import ExecutorState, one_at_a_time

# A device that never ran: no seed, no micro-batch.
_NEW_RNG_STATE = (0, 0)


class RandomState(ExecutorState):
    """The part of `PoplarExecutor` that knows the random numbers' state."""

    @property
    @one_at_a_time
    def rng_state(self) -> list[int]:
        """The seed and the state of the generator (exact in form; the numbers are ours).

        The first element is 0 if the model draws no random numbers; setting a list of one element
        sets the seed only.

        Raises:
            Error: the model is not compiled, or the list is of another length.
            TypeError: it is no list of integers of 64 bits.
        """
        self._compiled()
        if self._session is not None:
            self._rng_state = self._session.rng_state
        return list(self._rng_state or _NEW_RNG_STATE)

    @rng_state.setter
    @one_at_a_time
    def rng_state(self, state: list[int]) -> None:
        current = self.rng_state
        _check_numbers(state)
        if len(state) not in (1, len(current)):
            raise compiler_error(
                f"Devicex::setRngStateValue received rngState of size {len(state) - 1}; was "
                f"expecting size {len(current) - 1}. Pass a list that rng_state returned, or the "
                "seed alone.",
                type="popart_exception",
            )
        self._rng_state = [*state, *current[len(state) :]]
        if self._session is not None:
            self._session.rng_state = self._rng_state


def _check_numbers(state: object) -> None:
    numbers = state if isinstance(state, (list, tuple)) else [None]
    if not all(isinstance(n, int) and -(2**63) <= n < 2**63 for n in numbers):
        raise TypeError(
            "rng_state must be a list of integers of 64 bits, as rng_state returned it, but it is "
            f"{state!r}."
        )
