"""`Options.Precision`: options of numeric precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from poptorch_emu.config import CastRule
from poptorch_emu.errors import require
from poptorch_emu.log import logger
from poptorch_emu.options.base import OptionsDict, flag, note_accepted, require_type
from poptorch_emu.options.old_autocast import Policy
from poptorch_emu.options.popart import _PopartOptions

_NAME_OF_PARTIALS = {torch.float32: "float", torch.float16: "half"}


class _PrecisionOptions(OptionsDict, path="options.Precision"):
    """Options of numeric precision (exact); they are stored in `Options._Popart`."""

    _old_names = {
        "autocastEnabled": "_set_autocast_enabled",
        "autocastPolicy": "_set_autocast_policy",
        "autocast_enabled": "_autocast_enabled",
        "autocast_policy": "_autocast_policy",
    }

    def __init__(self, popart_options: _PopartOptions) -> None:
        """Stores `popart_options`, which the setters change."""
        self._popart = popart_options
        self._autocast_enabled = True
        self._autocast_policy: Policy | None = None
        super().__init__()

    def enableFloatingPointExceptions(self, enabled: bool) -> _PrecisionOptions:
        """Makes a run fail if a NaN or an infinity appears (exact as far as results show it).

        Raises:
            AssertionError: `enabled` is not a bool.
        """
        require(
            isinstance(enabled, bool),
            f"enableFloatingPointExceptions needs to be set to a bool, not to {enabled!r}.",
        )
        self._popart.set("enableFloatingPointChecks", enabled)
        return self

    def enableStochasticRounding(self, enabled: bool) -> _PrecisionOptions:
        """Rounds float32 to float16 at random and without bias (exact; the numbers are ours)."""
        self._popart.set("enableStochasticRounding", flag(enabled, "enableStochasticRounding"))
        return self

    def setPartialsType(self, dtype: torch.dtype) -> _PrecisionOptions:
        """Sets the dtype of the sums in matmul and convolution (accepted).

        Only the model of the machine reads it; sums here are float32. The call replaces the
        setting of `Training.setConvolutionDithering`, as in PopTorch.

        Raises:
            ValueError: `dtype` is neither `torch.float` nor `torch.half`.
        """
        if not isinstance(dtype, torch.dtype) or dtype not in _NAME_OF_PARTIALS:
            # PopTorch's message lacks this blank, too; programs may compare the text.
            raise ValueError(
                "The parameter to setPartialsType should be either"
                f"torch.float or torch.half, not {dtype!r}."
            )
        note_accepted("Options.Precision.setPartialsType")
        self._popart.set("partialsTypeMatMuls", _NAME_OF_PARTIALS[dtype])
        self._popart.set("convolutionOptions", {"partialsType": _NAME_OF_PARTIALS[dtype]})
        return self

    def _set_autocast_enabled(self, autocast_enabled: bool) -> _PrecisionOptions:
        """Enables or disables `poptorch.autocast` for a model (exact)."""
        require_type(autocast_enabled, bool, "autocast_enabled")
        self._autocast_enabled = autocast_enabled
        return self

    def _set_autocast_policy(self, autocast_policy: Policy) -> _PrecisionOptions:
        """Sets the dtype of each operation in a region of `poptorch.autocast` (exact)."""
        require_type(autocast_policy, Policy, "autocast_policy")
        self._autocast_policy = autocast_policy
        return self

    def _cast_rules(self) -> Mapping[str, CastRule]:
        if not self._autocast_enabled:
            return {}
        return (self._autocast_policy or Policy()).rules

    def halfFloatCasting(self, x: Any) -> _PrecisionOptions:
        """Does nothing; operations on mixed dtypes follow PyTorch's rules (accepted,
        deprecated)."""
        _warn_deprecated("halfFloatCasting")
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> _PrecisionOptions:
        """Does nothing; running statistics keep the dtype of their buffers (accepted, deprecated).

        Raises:
            ValueError: `value` is not a bool.
        """
        if not isinstance(value, bool):
            raise ValueError(
                f"runningStatisticsAlwaysFloat needs to be set to a bool, not to {value!r}."
            )
        _warn_deprecated("runningStatisticsAlwaysFloat")
        return self


def _warn_deprecated(method: str) -> None:
    logger.warning(
        "[Deprecated] Do not call options.Precision.%s(): it has no effect. Remove the call.",
        method,
    )
