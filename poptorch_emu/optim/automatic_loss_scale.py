"""Conversion of the backend's options to the rule of an automatic loss scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.update.formulas.loss_scale import LossScaleRule

_PREFIX = "automaticLossScalingSettings."


def loss_scale_rule(backend: Mapping[str, Any]) -> LossScaleRule | None:
    """Returns the rule that the options describe; `None` if the loss scale is not automatic.

    Args:
        backend: the backend's options by name; their types are checked elsewhere.

    Raises:
        Error: a value is out of range.
    """
    if not backend.get(_PREFIX + "enabled", False):
        return None

    def setting(name: str, default: float) -> Any:
        value = backend.get(_PREFIX + name, default)
        # The compilation refuses a value of another type later, when it checks all options.
        return value if isinstance(value, type(default)) else default

    default = LossScaleRule()
    rule = LossScaleRule(
        setting("binEdgeLocation", default.bin_edge),
        setting("thresholdUpperCountProportion", default.max_share),
        setting("updatePeriod", default.period),
    )
    if not 0.0 < rule.bin_edge <= 1.0:
        raise _out_of_range("binEdgeLocation", rule.bin_edge, "above 0 and at most 1")
    if not 0.0 <= rule.max_share <= 1.0:
        raise _out_of_range("thresholdUpperCountProportion", rule.max_share, "from 0 to 1")
    if rule.period < 1:
        raise _out_of_range("updatePeriod", rule.period, "at least 1")
    return rule


def _out_of_range(name: str, value: float, allowed: str) -> Error:
    return compiler_error(
        f"The option {_PREFIX}{name} is {value}, but must be {allowed}. Set it with "
        "poptorch.Options()._Popart.set, or leave it out."
    )
