"""The state of an executor's random numbers, with and without a device."""

from __future__ import annotations

from poptorch_emu.errors import compiler_error
from poptorch_emu.executor.attached_device import AttachedDevice
from poptorch_emu.runtime.session import Session

# State of a new device: seed 0, micro-batch 0.
_NEW_STATE = (0, 0)


class RandomState:
    """The seed and the state of the generator, which outlive a device."""

    def __init__(self, device: AttachedDevice) -> None:
        """Starts without a state; `device` holds the attached device."""
        self._device = device
        self._kept: list[int] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the user has set a state, or a device has or had one."""
        return self._device.session is not None or self._kept is not None

    def read(self) -> list[int]:
        """Returns the newest state."""
        if self._device.session is not None:
            self.keep(self._device.session)
        return list(self._kept or _NEW_STATE)

    def write(self, state: list[int]) -> None:
        """Replaces the state, or only the seed if the list has one element.

        Raises:
            Error: the list has another length.
            TypeError: the state is not a list of 64-bit integers.
        """
        current = self.read()
        _check_numbers(state)
        if len(state) not in (1, len(current)):
            raise compiler_error(
                f"Devicex::setRngStateValue received rngState of size {len(state) - 1}; was "
                f"expecting size {len(current) - 1}. Pass a list that rng_state returned, or the "
                "seed alone.",
                type="popart_exception",
            )
        self._kept = [*state, *current[len(state) :]]
        if self._device.session is not None:
            self.send(self._device.session)

    def send(self, session: Session) -> None:
        """Sends the stored state to a device; does nothing without a stored state."""
        if self._kept is not None:
            session.rng_state = self._kept

    def keep(self, session: Session) -> None:
        """Stores the state of a device for the next one."""
        self._kept = session.rng_state

    def forget(self) -> None:
        """Drops the state, so that the next device starts as the options say."""
        self._kept = None


def _check_numbers(state: object) -> None:
    numbers = state if isinstance(state, (list, tuple)) else [None]
    if not all(isinstance(n, int) and -(2**63) <= n < 2**63 for n in numbers):
        raise TypeError(
            "rng_state must be a list of integers of 64 bits, as rng_state returned it, but it is "
            f"{state!r}."
        )
