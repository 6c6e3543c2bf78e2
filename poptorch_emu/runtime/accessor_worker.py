"""The worker process of an asynchronous accessor: it iterates a dataset and fills a ring of slots.

What the two processes say to each other is told in `accessor_link.py`.
"""

from __future__ import annotations

import os
import pickle
import random
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing import set_start_method
from multiprocessing.connection import Connection
from multiprocessing.util import register_after_fork
from typing import Any

import numpy as np
import torch

from poptorch_emu.runtime.accessor_link import (
    Begin,
    Ended,
    Failed,
    Filled,
    Link,
    LinkClosed,
    Ready,
    Released,
)
from poptorch_emu.runtime.element import Piece, cut_rows, template_of, tensors_of
from poptorch_emu.runtime.ring import Ring, RingLayout, TensorSpec, new_file
from poptorch_emu.structure import ICustomArgParser, register_parser

_NOTHING = object()
_MAX_NUMPY_SEED = 2**32


@dataclass(frozen=True)
class WorkerSettings:
    """What the worker must know besides the dataset.

    Attributes:
        num_slots: size of the ring.
        rebatched_rows: rows of each slot; `None` means one whole element a slot.
        keeps_remainder: whether rows that do not fill the last slot of an epoch are delivered.
        loads_early: whether the first epoch is loaded before it is asked for.
        loads_indefinitely: whether every other epoch is.
        start_method: how the dataset's own processes start, such as helpers of a loader: as they
            would without this worker. `None` is Python's default.
        seed: of the random generators, so that they do not depend on how the worker was started.
        parsers: the registered types, which a worker that was not forked does not know.
    """

    num_slots: int
    rebatched_rows: int | None
    keeps_remainder: bool
    loads_early: bool
    loads_indefinitely: bool
    start_method: str | None
    seed: int
    parsers: Mapping[type, ICustomArgParser]


def close_when_forked(connection: Connection) -> None:
    """Closes `connection` in every forked child, where it would hide the end of this process."""
    register_after_fork(connection, Connection.close)


def run_worker(connection: Connection, dataset: Iterable[Any], settings: WorkerSettings) -> None:
    """Serves the accessor at the other end of `connection` until that end is closed.

    Raises:
        Exception: whatever the dataset raised; the accessor has been told.
    """
    close_when_forked(connection)
    _set_up_process(settings)
    link = Link(connection)
    try:
        with torch.no_grad():
            _Producer(link, dataset, settings).run()
    except (LinkClosed, KeyboardInterrupt):
        pass
    except BaseException as error:
        link.send(Failed("".join(traceback.format_exception_only(type(error), error)).strip()))
        raise


def _set_up_process(settings: WorkerSettings) -> None:
    set_start_method(settings.start_method, force=True)
    # As in PyTorch's own workers: the threads of the parent's pool do not survive a fork.
    torch.set_num_threads(1)
    # A loader's helpers hand tensors over by name, at about half the cost of descriptors.
    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    torch.manual_seed(settings.seed)
    random.seed(settings.seed)
    np.random.seed(settings.seed % _MAX_NUMPY_SEED)
    for data_type, parser in settings.parsers.items():
        register_parser(data_type, parser)


class _Producer:
    """Iterates the dataset, epoch after epoch, as far as the accessor lets it."""

    def __init__(self, link: Link, dataset: Iterable[Any], settings: WorkerSettings) -> None:
        self._link = link
        self._dataset = dataset
        self._settings = settings
        self._wanted = -1
        self._num_free = settings.num_slots
        self._num_filled = 0
        iterator = iter(dataset)
        first = next(iterator, _NOTHING)
        if first is _NOTHING:
            raise ValueError("The Dataset is empty: it must have at least one element.")
        self._template = template_of(first)
        self._ring = self._share_ring(tensors_of(first))
        self._begun: Iterator[Any] | None = chain([first], iterator)

    def run(self) -> None:
        """Delivers epochs for ever."""
        epoch, runs_ahead = 0, self._settings.loads_early
        while True:
            while self._wanted < epoch and not runs_ahead:
                self._handle(self._link.receive())
            has_delivered = self._deliver(epoch)
            # An empty epoch is not followed by another unasked: there could be no end of them.
            runs_ahead = self._settings.loads_indefinitely and has_delivered
            epoch += 1

    def _share_ring(self, tensors: Sequence[torch.Tensor]) -> Ring:
        settings = self._settings
        specs = (TensorSpec.of(tensor) for tensor in tensors)
        if settings.rebatched_rows is not None:
            rows = settings.rebatched_rows
            specs = (TensorSpec((rows, *spec.shape[1:]), spec.dtype) for spec in specs)
        layout = RingLayout(settings.num_slots, tuple(specs))
        file = new_file(layout)
        try:
            self._link.send(Ready(layout, pickle.dumps(self._template)))
            self._link.send_file(file)
            return Ring(layout, file)
        finally:
            os.close(file)

    def _deliver(self, epoch: int) -> bool:
        """Fills slots until the epoch ends or a later one is wanted; returns whether any was."""
        num_filled_before = self._num_filled
        num_rows: int | None = 0
        for piece in self._pieces():
            if not self._has_slot(epoch):
                return self._num_filled > num_filled_before
            num_rows = self._write(piece)
            if num_rows in (None, self._settings.rebatched_rows):
                self._publish(epoch, num_rows)
                num_rows = 0
        if num_rows and self._settings.keeps_remainder:
            self._publish(epoch, num_rows)
        self._link.send(Ended(epoch))
        return self._num_filled > num_filled_before

    def _pieces(self) -> Iterator[Piece]:
        elements = iter(self._dataset) if self._begun is None else self._begun
        self._begun = None
        flat = (tensors_of(element, self._template) for element in elements)
        if self._settings.rebatched_rows is None:
            return (Piece(tensors) for tensors in flat)
        return cut_rows(flat, self._settings.rebatched_rows)

    def _has_slot(self, epoch: int) -> bool:
        """Waits for a free slot; returns false where a later epoch is wanted instead."""
        while self._wanted <= epoch and (self._num_free == 0 or self._link.has_message()):
            self._handle(self._link.receive())
        return self._wanted <= epoch

    def _handle(self, message: Begin | Released) -> None:
        if isinstance(message, Begin):
            self._wanted = message.epoch
        else:
            self._num_free += 1

    def _write(self, piece: Piece) -> int | None:
        """Copies rows to the next slot; returns how many it has, `None` for all at once."""
        slot = self._ring.slot(self._num_filled)
        if len(slot) != len(piece.tensors):
            raise ValueError(
                f"An element has {len(piece.tensors)} tensors, but the first one had {len(slot)}. "
                "All elements must have the same number."
            )
        for index, (place, source) in enumerate(zip(slot, piece.tensors, strict=True)):
            if piece.num_rows is not None:
                place = place.narrow(0, piece.first_row, piece.num_rows)
            if place.shape != source.shape or place.dtype != source.dtype:
                raise ValueError(
                    f"Tensor at index {index} of an element is {TensorSpec.of(source)}, but that "
                    f"of the first element makes room for {TensorSpec.of(place)}. All elements "
                    "must have the same shapes and types; for a smaller last batch give "
                    "rebatched_size or drop_last=True."
                )
            place.copy_(source)
        return None if piece.num_rows is None else piece.first_row + piece.num_rows

    def _publish(self, epoch: int, num_rows: int | None) -> None:
        self._link.send(Filled(epoch, num_rows))
        self._num_free -= 1
        self._num_filled += 1
