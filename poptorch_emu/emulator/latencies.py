"""Choosing whose time latencies are."""

from __future__ import annotations

from poptorch_emu.emulator.given_values import check_options
from poptorch_emu.errors import make_error
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.options import Options

_CHOICES = ("measured", "modelled")


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
    options._check_unfrozen()
    if choice not in _CHOICES:
        raise make_error(
            f"Unknown latencies: {choice!r}. Choose one of {list(_CHOICES)}."
            f"{did_you_mean(choice, _CHOICES)}"
        )
    options._has_modelled_latencies = choice == "modelled"
