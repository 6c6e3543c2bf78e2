"""Checks whether autograd's anomaly mode is on, which makes training calls search for NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from poptorch_emu.executor.device_lock import DeviceLock
from poptorch_emu.module_loading import LateModule
from poptorch_emu.runtime.session import Session

if TYPE_CHECKING:
    from poptorch_emu.executor import nan_hunt
else:
    nan_hunt = LateModule("poptorch_emu.executor.nan_hunt")


def hunt_of(
    model: torch.nn.Module,
    session: Session,
    tensors: Sequence[torch.Tensor],
    device_lock: DeviceLock,
) -> nan_hunt.NanHunt | None:
    """Returns the search for NaN in the next call; None if the mode is off.

    Args:
        model: the user's model.
        session: session that will run the call.
        tensors: inputs of the call.
        device_lock: lock of the session's device.
    """
    is_on = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    is_training = session.executable.config.is_training
    if not is_on or not is_training:
        return None
    return nan_hunt.NanHunt(model, session, tensors, device_lock)
