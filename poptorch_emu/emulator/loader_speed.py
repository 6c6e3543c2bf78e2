"""Measurement of the speed of a program's loader on this computer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from poptorch_emu.plan.time.time_plan import HostWork
from poptorch_emu.structure import flatten_tensors

_SECONDS = 2.0


def host_work(io: HostWork | Iterable[Any] | None, seconds: float = _SECONDS) -> HostWork | None:
    """Returns the work of the host; the speed of a loader is measured.

    The first batches, during which the loader's processes start, count only if no others come.

    Args:
        io: host work, a loader whose batches hold tensors with one row for each sample, or `None`.
        seconds: minimum time that the loader runs; it is restarted if it ends earlier.

    Raises:
        TypeError: `io` has another type.
        ValueError: the loader yields no batch, or a batch without a tensor that has rows.
    """
    if io is None or isinstance(io, HostWork):
        return io
    if not isinstance(io, Iterable):
        raise TypeError(
            f"io is of type {type(io).__name__}; expected emulator.HostWork(...), or a loader, "
            "whose speed is measured."
        )
    return HostWork(items_per_second=_rows_per_second(io, seconds), is_measured=True)


def _rows_per_second(loader: Iterable[Any], seconds: float) -> float:
    # Worker processes create batches at the same time, one each, so batches arrive in groups. Whole
    # groups are timed, except the first of each turn, which waits until the workers have started.
    group = max(1, getattr(loader, "num_workers", None) or 0)
    begin = now = time.perf_counter()
    num_rows, steady_rows, steady_seconds = 0, 0, 0.0
    while now - begin < seconds:
        num_before, last = num_rows, (num_rows, now)
        for number, batch in enumerate(loader, 1):
            num_rows, now = num_rows + _rows(batch), time.perf_counter()
            if number % group:
                continue
            if number > group:
                steady_rows += num_rows - last[0]
                steady_seconds += now - last[1]
                if now - begin >= seconds:
                    break
            last = num_rows, now
        if num_rows == num_before:  # A loader that can be iterated only once has ended.
            break
    if not num_rows:
        raise ValueError("the loader given as io yields no batch, so its speed is not known.")
    if not steady_rows:
        steady_rows, steady_seconds = num_rows, now - begin
    return steady_rows / max(steady_seconds, 1e-9)


def _rows(batch: Any) -> int:
    """Returns the number of rows of the first tensor that has an axis."""
    for tensor in flatten_tensors(batch):
        if tensor.dim():
            return int(tensor.shape[0])
    raise ValueError(
        f"a batch of the loader given as io is {type(batch).__name__} without a tensor that has "
        "rows, so its speed is not known. Give emulator.HostWork(items_per_second=...) instead."
    )
