"""The device that is attached to an executor, and the session that runs there."""

from __future__ import annotations

from poptorch_emu.compile.executable import Executable
from poptorch_emu.config import TargetKind
from poptorch_emu.runtime.devices import Device, acquire
from poptorch_emu.runtime.session import Session


class AttachedDevice:
    """A device and a session on it, from `take` to `release`.

    What needs no virtual IPUs (an IPU Model, a program without work) has a session alone.

    Attributes:
        session: what runs on the device; `None` while none is attached.
    """

    def __init__(self) -> None:
        """Starts with neither."""
        self._device: Device | None = None
        self.session: Session | None = None

    def take(self, executable: Executable) -> Session:
        """Takes a device and loads `executable` there.

        Raises:
            Error: no device is free, or the system has none that is large enough.
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
        """Drops the session and gives the device back; without any it does nothing."""
        self.session = None
        if self._device is not None:
            self._device.release()
            self._device = None
