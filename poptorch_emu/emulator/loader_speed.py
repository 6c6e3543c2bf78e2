"""How fast a loader of the user's program is on this computer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from poptorch_emu.plan.time.time_plan import HostWork
from poptorch_emu.structure import flatten_tensors

_SECONDS = 2.0


def host_work(io: HostWork | Iterable[Any] | None, seconds: float = _SECONDS) -> HostWork | None:
    """Returns the work of a host, which a loader is run for.

    The first batch, for which the loader's processes start, counts only where there is no other.

    Args:
        io: host work, a loader whose batches hold tensors with one row for each sample, or `None`.
        seconds: how long the loader runs at least, if it has so many batches.

    Raises:
        TypeError: it is none of them.
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
    begin = time.perf_counter()
    batches = iter(loader)
    first = next(batches, None)
    if first is None:
        raise ValueError("the loader given as io yields no batch, so its speed is not known.")
    after_first = time.perf_counter()
    rows, end = 0, after_first
    for batch in batches:
        rows, end = rows + _rows(batch), time.perf_counter()
        if end - after_first >= seconds:
            break
    if not rows:
        rows, after_first = _rows(first), begin
    return rows / max(end - after_first, 1e-9)


def _rows(batch: Any) -> int:
    """Returns the rows of the first tensor that has any."""
    for tensor in flatten_tensors(batch):
        if tensor.dim():
            return int(tensor.shape[0])
    raise ValueError(
        f"a batch of the loader given as io is {type(batch).__name__} without a tensor that has "
        "rows, so its speed is not known. Give emulator.HostWork(items_per_second=...) instead."
    )
