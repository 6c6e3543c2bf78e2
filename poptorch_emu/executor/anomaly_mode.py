"""Whether autograd's anomaly mode is on, in which a call of a training model is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from poptorch_emu.module_loading import LateModule
from poptorch_emu.optim.device_link import OptimizerLink
from poptorch_emu.runtime.session import Session

if TYPE_CHECKING:
    from poptorch_emu.executor import nan_hunt
else:
    nan_hunt = LateModule("poptorch_emu.executor.nan_hunt")


def hunt_of(
    model: torch.nn.Module, link: OptimizerLink | None, session: Session
) -> nan_hunt.NanHunt | None:
    """Returns what looks at the call that follows; `None` where nobody asks for it.

    Args:
        model: the user's.
        link: to the optimiser, in training.
        session: which will run.
    """
    is_on = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    return nan_hunt.NanHunt(model, link, session) if is_on and link is not None else None
