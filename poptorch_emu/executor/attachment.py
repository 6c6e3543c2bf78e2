"""How an executor takes a device, and what it brings there and back."""

from __future__ import annotations

from poptorch_emu.compile.executable import Executable
from poptorch_emu.config import TargetKind
from poptorch_emu.errors import make_error, require
from poptorch_emu.executor.executor_state import one_at_a_time
from poptorch_emu.executor.measurement import Measurement, spans_of
from poptorch_emu.executor.weight_movement import WeightMovement
from poptorch_emu.runtime.arguments import Arguments
from poptorch_emu.runtime.devices import Device, acquire
from poptorch_emu.runtime.session import Session


class Attachment(WeightMovement, Measurement):
    """The part of `PoplarExecutor` that is attached and detached."""

    _device: Device | None
    _arguments: Arguments | None

    @one_at_a_time
    def attachToDevice(self) -> None:
        """Takes a device and uploads weights, optimiser state and random state (exact).

        Raises:
            Error: not compiled, attached already, or no device is free.
            AssertionError: the model was compiled offline.
        """
        self._compiled()
        require(
            not self._is_offline,
            "Trying to attach to an offline device (ConnectionType.Never). Choose another "
            "connection type to run the model.",
        )
        if self.isAttachedToDevice():
            raise make_error("Device is already attached. Call detachFromDevice() first.")
        self._attach()

    @one_at_a_time
    def detachFromDevice(self) -> None:
        """Brings weights, optimiser state and random state back and releases the device (exact).

        Raises:
            Error: not compiled, or not attached.
        """
        self._compiled()
        if self._session is None:
            raise make_error("Device is not attached. Call attachToDevice(), or run the model.")
        self._detach()

    def isAttachedToDevice(self) -> bool:
        """Returns whether the compiled model holds a device (exact).

        A model whose outputs are all constants needs none and counts as attached.
        """
        if self._executable is None:
            return False
        return self._session is not None or not self._executable.has_device_work

    def _attach_compiled(self) -> None:
        """Attaches what was just compiled; if that fails, nothing is compiled either."""
        try:
            self._attach()
        except BaseException:
            self._executable = None
            self._arguments = None
            raise

    def _attach(self) -> None:
        executable = self._compiled()
        if executable.has_device_work and executable.config.target is TargetKind.HARDWARE:
            self._device = acquire(executable.num_ipus, executable.config.ipu_id)
        try:
            self._session = self._new_session(executable)
        except BaseException:
            self._release()
            raise

    def _new_session(self, executable: Executable) -> Session:
        session = Session(executable)
        self._meet_trainers()
        session.upload(self._host_tensors())
        self._tell_partners(executable.variables)
        if self._optimizer_link is not None:
            self._optimizer_link.send(session)
        if self._rng_state is not None:
            session.rng_state = self._rng_state
        self._start_profile(session)
        return session

    def _release(self) -> None:
        if self._device is not None:
            self._device.release()
            self._device = None

    def _detach(self) -> None:
        """Brings back what the device has and releases it, if one is attached."""
        if self._session is not None:
            if self._training:
                self.copyWeightsToHostIfNeeded()
            if self._optimizer_link is not None:
                self._optimizer_link.receive(self._session)
            self._end_profile()
            self._rng_state = self._session.rng_state
            self._spans = spans_of(self._session)
            self._session = None
        self._release()
