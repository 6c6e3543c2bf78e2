"""Cumulative averages of batch norms, which depend on the counter `num_batches_tracked`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.modules.batchnorm import SyncBatchNorm

from poptorch_emu.torch_versions import BatchNorm
from poptorch_emu.trace.pytorch.patches import patched


@contextmanager
def cumulative_averages() -> Iterator[None]:
    """Makes batch norms without a momentum read their counter on the device in a trace.

    PyTorch reads the value of the counter on the host, because it is the number of averaged terms.
    """
    with (
        patched(BatchNorm, forward=_averaging(BatchNorm.forward)),
        patched(SyncBatchNorm, forward=_averaging(SyncBatchNorm.forward)),
    ):
        yield


def _averaging(forward: Any) -> Any:
    def averaged(norm: BatchNorm, input: torch.Tensor) -> Any:
        is_averaged = norm.training and norm.track_running_stats and norm.momentum is None
        if not is_averaged or norm.num_batches_tracked is None:
            return forward(norm, input)
        norm._check_input_dim(input)  # type: ignore[no-untyped-call]
        norm.num_batches_tracked.add_(1)
        share = 1.0 / norm.num_batches_tracked
        averages: Any = (norm.running_mean, norm.running_var)
        mean, variance = map(torch.zeros_like, averages)
        result = F.batch_norm(input, mean, variance, norm.weight, norm.bias, True, 1.0, norm.eps)
        with torch.no_grad():
            for average, batch in zip(averages, (mean, variance), strict=True):
                average.copy_((1.0 - share) * average.float() + share * batch.float())
        return result

    return averaged
