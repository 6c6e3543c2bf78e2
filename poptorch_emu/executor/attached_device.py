"""The device that is attached to an executor, and the session that runs there."""

from __future__ import annotations

from poptorch_emu.compile.executable import Executable
from poptorch_emu.config import TargetKind
from poptorch_emu.runtime.devices import Device, acquire
from poptorch_emu.runtime.session import Session


class AttachedDevice:
    """A device and a session on it, from `take` to `release`.

    A program without virtual IPUs (for an IPU Model, or without work) only has a session.

    Attributes:
        session: session on the device; None while no device is attached.
    """

    def __init__(self) -> None:
        """Starts without a device and a session."""
        self._device: Device | None = None
        self.session: Session | None = None

    def take(self, executable: Executable) -> Session:
        """Acquires a device and loads `executable` there.

        Raises:
            Error: no device is free, or the system has no device that is large enough.
        """
        config = executable.config
        if executable.has_device_work and config.target is TargetKind.HARDWARE:
            self._device = acquire(executable.num_ipus, config.ipu_id)
        try:
            self.session = Session(executable)
        except BaseException:
            self.release()
            raise
        return self.session

    def release(self) -> None:
        """Drops the session and releases the device; does nothing without them."""
        self.session = None
        if self._device is not None:
            self._device.release()
            self._device = None
