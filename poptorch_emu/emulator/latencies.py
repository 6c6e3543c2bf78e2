"""Choice of the clock that latencies are measured with."""

from __future__ import annotations

from poptorch_emu.emulator.given_values import check_choice, check_options
from poptorch_emu.options import Options


def set_latencies(options: Options, choice: str) -> None:
    """Sets the source of the times in `getPerfCounters`, `getLatency` and the like (modelled).

    Args:
        options: options that are not frozen.
        choice: "measured" (the clock of this computer, the default) or "modelled": the times of
            `emulator.timeline` for the virtual system, counted from the start of the call.

    Raises:
        AttributeError: the options are frozen.
        Error: `choice` is unknown.
    """
    check_options(options)
    check_choice("latencies", choice, ("measured", "modelled"))
    options.Emulator.has_modelled_latencies = choice == "modelled"
