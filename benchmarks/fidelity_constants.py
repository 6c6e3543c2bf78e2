"""Computes the effect of each constant of the time model, and of each assumed setting, on rows.

A constant that is switched off takes no time. An assumption is replaced by the setting without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fidelity_cross_validation import recaptured
from fidelity_time import Captured
from time_rows import OTHER_SETTINGS

from poptorch_emu.machine.time_numbers import NUMBERS

_NO_TIME = 1e15

# Values that switch constants off. Constants that affect no published row (gateways between pods,
# streams without prefetching) are not listed.
WITHOUT = {
    "step_cycles": 0.0,
    "inference_step_cycles": NUMBERS.step_cycles,
    "call_seconds": 0.0,
    "host_sync_seconds": 0.0,
    "host_bytes_per_second": _NO_TIME,
    "output_bytes_per_second": _NO_TIME,
    "remote_sync_seconds": 0.0,
    "remote_bytes_per_second": _NO_TIME,
    "machine_remote_bytes_per_second": _NO_TIME,
    "link_sync_cycles": 0.0,
    "pair_bytes_per_second": _NO_TIME,
    "ladder_bytes_per_second": _NO_TIME,
    "ring_bytes_per_second": _NO_TIME,
    "hop_seconds": 0.0,
    "machine_hop_seconds": NUMBERS.hop_seconds,
}


def constant_figures(cases: Sequence[Captured]) -> Iterator[dict[str, object]]:
    """Yields rows of `results/fidelity_constants.csv`: the row that each constant moves most."""
    usual = {case.row.name: case.error() for case in cases}
    for name, value in WITHOUT.items():
        numbers = replace(NUMBERS, **{name: value})
        errors = {case.row.name: case.error(numbers) for case in cases}
        most = max(usual, key=lambda row: abs(errors[row] - usual[row]))
        yield {
            "number": name,
            "value": f"{value:g}",
            "most changed": most,
            "without": percent(errors[most]),
            "with": percent(usual[most]),
        }


def setting_figures(cases: Sequence[Captured]) -> Iterator[dict[str, object]]:
    """Yields rows of `results/fidelity_settings.csv`: predictions with another setting."""
    for setting in OTHER_SETTINGS:
        yield {
            "row": setting.row.name,
            "taken": setting.taken,
            "choice": setting.choice.value,
            "otherwise": setting.otherwise,
            "predicted": recaptured(setting.row, cases).figures()["predicted"],
        }


def percent(error: float) -> str:
    """Returns an error in percent, as the files contain it."""
    return f"{100 * error:+.0f}"
