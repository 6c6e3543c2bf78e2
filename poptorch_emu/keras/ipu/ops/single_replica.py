"""Whether there is a single replica, among which nothing is exchanged."""

from __future__ import annotations

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.ipu.config import system_settings
from poptorch_emu.keras.loops.capture_state import SendingCapture, current


def require_single_replica(name: str) -> None:
    """Refuses to exchange values among several replicas.

    Raises:
        Error: there are several.
    """
    capture = current()
    if capture is None or isinstance(capture, SendingCapture):
        count = system_settings().num_ipus or 1
    else:
        count = capture.replicas
    if count > 1:
        raise compiler_error(
            f"ipu.{name} exchanges values among {count} replicas, which the emulator does for "
            "gradients only. Send the value to an IPUOutfeedQueue, whose rows are those of the "
            "replicas, and reduce it on the host, or set IPUConfig.auto_select_ipus to 1."
        )
