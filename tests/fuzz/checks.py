"""Kinds of random checks by name, and refusals that count as passed."""

from __future__ import annotations

import re
from collections.abc import Callable

from fuzz.files import check_files, check_kill
from fuzz.layouts import check_layouts
from fuzz.others import check_groups, check_inference, check_wrappers
from fuzz.parts import register_operators
from fuzz.reports import check_reports
from fuzz.training import check_noise, check_training
from support.random_plans import check_plans

import poptorch_emu as poptorch

CHECKS: dict[str, Callable[[int], str]] = {
    "training": check_training,
    "noise": check_noise,
    "inference": check_inference,
    "wrappers": check_wrappers,
    "groups": check_groups,
    "files": check_files,
    "layouts": check_layouts,
    "reports": check_reports,
    "kill": check_kill,
    "plans": check_plans,
}
# Errors that a random model may raise by PopTorch's rules.
REFUSALS = re.compile(
    "must be greater than or equal to the number of pipeline stages"
    "|is read in stage .* and written in stage"
)

register_operators()


def check(kind: str, seed: int) -> str:
    """Checks one case; returns "passed" or "refused", or raises the fault."""
    try:
        CHECKS[kind](seed)
    except (poptorch.Error, AssertionError, RuntimeError) as error:
        if not REFUSALS.search(str(error)):
            raise
        return "refused"
    return "passed"
