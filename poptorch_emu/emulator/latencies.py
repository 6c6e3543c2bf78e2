"""Choosing whose time latencies are."""

from __future__ import annotations

from poptorch_emu.emulator.given_values import check_choice, check_options
from poptorch_emu.options import Options


def set_latencies(options: Options, choice: str) -> None:
    """Chooses what `getPerfCounters`, `getLatency` and its like tell (modelled).

    Args:
        options: not yet frozen.
        choice: "measured" (the clock of this computer, as by default) or "modelled": the times of
            `emulator.timeline` for the virtual system, counted from the beginning of the call.

    Raises:
        AttributeError: the options are frozen.
        Error: there is no such choice.
    """
    check_options(options)
    check_choice("latencies", choice, ("measured", "modelled"))
    options._has_modelled_latencies = choice == "modelled"
