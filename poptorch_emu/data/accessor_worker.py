"""The worker process of an asynchronous accessor: it iterates a dataset and fills a ring of slots.

`ring_progress.py` has the protocol between the two processes.
"""

from __future__ import annotations

import pickle
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from multiprocessing import set_start_method
from typing import Any

import numpy as np
import torch

from poptorch_emu.data.accessor_link import ElementLayout, Kind, Link, LinkClosed
from poptorch_emu.data.batch_source import BatchSource
from poptorch_emu.data.element import Piece, cut_rows, template_of, tensors_of
from poptorch_emu.data.exception_text import text_of_exception
from poptorch_emu.data.ring import Ring, RingFile, RingLayout, TensorSpec
from poptorch_emu.data.ring_progress import WorkerProgress, num_words
from poptorch_emu.log import logger
from poptorch_emu.structure import ICustomArgParser, register_parser

_NOTHING = object()

# Stands for a batch that `SlotCollate` has built in the next slot.
_IN_PLACE = Piece(())
_MAX_NUMPY_SEED = 2**32

# Time between two checks whether the accessor has ended, while slots are free (assumed).
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of the worker beside the dataset.

    Attributes:
        num_slots: number of slots in the ring.
        rebatched_rows: rows of each slot; `None` means one whole element in each slot.
        keeps_remainder: whether rows that do not fill the last slot of an epoch are delivered.
        loads_early: whether the first epoch is loaded before the accessor asks for it.
        loads_indefinitely: whether later epochs are loaded before the accessor asks for them.
        start_method: start method of the dataset's own processes, for example of a loader's
            helpers. `None` is Python's default.
        seed: seed of the random generators, so that they do not depend on the start method.
        parsers: registered types, which a worker that was not forked does not know.
    """

    num_slots: int
    rebatched_rows: int | None
    keeps_remainder: bool
    loads_early: bool
    loads_indefinitely: bool
    start_method: str | None
    seed: int
    parsers: Mapping[type, ICustomArgParser]


def run_worker(link: Link, file: RingFile, source: BatchSource, settings: WorkerSettings) -> None:
    """Serves the accessor at the other end of `link` until that end is closed.

    Raises:
        SystemExit: the dataset raised an exception, which the accessor has received.
    """
    link.close_when_forked()
    _set_up_process(settings)
    try:
        with torch.no_grad():
            _Producer(link, file, source, settings).run()
    except (LinkClosed, KeyboardInterrupt):
        pass
    except BaseException as error:
        link.send(Kind.FAILED, text_of_exception(error))
        sys.exit(1)  # Without a traceback of its own: the accessor's error has it all.


def _set_up_process(settings: WorkerSettings) -> None:
    set_start_method(settings.start_method, force=True)
    # As in PyTorch's workers, because the threads of the parent's pool do not survive a fork.
    torch.set_num_threads(1)
    # A loader's helpers then pass tensors by name, at about half the cost of descriptors.
    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    torch.manual_seed(settings.seed)
    random.seed(settings.seed)
    np.random.seed(settings.seed % _MAX_NUMPY_SEED)
    for data_type, parser in settings.parsers.items():
        register_parser(data_type, parser)


class _Producer:
    """Iterates the dataset, epoch after epoch, as fast as the accessor releases slots."""

    def __init__(
        self, link: Link, file: RingFile, source: BatchSource, settings: WorkerSettings
    ) -> None:
        self._link = link
        self._source = source
        self._settings = settings
        self._is_set_up = self._has_warned_of_type = False
        self._next_look_seconds = 0.0
        # Rows that are joined and cut again do not fit the slots that hold the batches.
        is_whole = settings.rebatched_rows is None
        self._collate = source.collate_into(self._next_slot) if is_whole else None
        iterator = iter(source)
        first = next(iterator, _NOTHING)
        if first is _NOTHING:
            raise ValueError(
                "The Dataset is empty: it must have at least one element, and a dataset of a "
                "DataLoader at least the samples of one step."
            )
        self._template = template_of(first)
        self._ring = self._make_ring(file, tensors_of(first))
        self._progress = WorkerProgress(self._ring.words, settings.num_slots, link)
        self._begun: Iterator[Any] | None = chain([first], iterator)
        self._is_set_up = True

    def run(self) -> None:
        """Delivers epochs for ever."""
        epoch, runs_ahead = 0, self._settings.loads_early
        while True:
            if not runs_ahead:
                self._await_begin(epoch)
            has_delivered = self._deliver(epoch)
            # After an empty epoch the worker waits, because endless empty epochs could follow.
            runs_ahead = self._settings.loads_indefinitely and has_delivered
            epoch += 1

    def _await_begin(self, epoch: int) -> None:
        self._progress.wait(lambda: self._progress.num_begun > epoch)

    def _make_ring(self, file: RingFile, tensors: Sequence[torch.Tensor]) -> Ring:
        settings = self._settings
        specs = (TensorSpec.of(tensor) for tensor in tensors)
        if settings.rebatched_rows is not None:
            rows = settings.rebatched_rows
            specs = (TensorSpec((rows, *spec.shape[1:]), spec.dtype) for spec in specs)
        layout = RingLayout(settings.num_slots, tuple(specs), num_words(settings.num_slots))
        with closing(file):
            file.allocate(layout)
            ring = Ring(layout, file)
        self._link.send(Kind.READY, ElementLayout(layout, pickle.dumps(self._template)))
        return ring

    def _deliver(self, epoch: int) -> bool:
        """Fills slots until the epoch ends or a later one is asked for; returns whether any was."""
        num_filled_before = self._progress.num_filled
        num_rows: int | None = 0
        for piece in self._pieces():
            if not self._has_slot(epoch):
                return self._progress.num_filled > num_filled_before
            num_rows = self._write(piece)
            if num_rows in (None, self._settings.rebatched_rows):
                self._progress.publish(epoch, num_rows or 0)
                num_rows = 0
        if num_rows and self._settings.keeps_remainder:
            self._progress.publish(epoch, num_rows)
        self._progress.publish_end(epoch)
        return self._progress.num_filled > num_filled_before

    def _pieces(self) -> Iterator[Piece]:
        elements = iter(self._source) if self._begun is None else self._begun
        self._begun = None
        if self._settings.rebatched_rows is None:
            return map(self._whole_piece, elements)
        flat = (tensors_of(element, self._template) for element in elements)
        return cut_rows(flat, self._settings.rebatched_rows)

    def _whole_piece(self, element: Any) -> Piece:
        if self._collate is not None and element is self._collate.made:
            return _IN_PLACE
        return Piece(tensors_of(element, self._template))

    def _has_slot(self, epoch: int) -> bool:
        """Waits for a free slot; returns false if the accessor asks for a later epoch instead."""
        progress, num_begun = self._progress, epoch + 1
        if not progress.num_free:
            progress.wait(lambda: progress.num_free > 0 or progress.num_begun > num_begun)
        self._check_link()
        return progress.num_begun <= num_begun

    def _check_link(self) -> None:
        """Raises `LinkClosed` if the accessor has ended; checks a few times a second."""
        now_seconds = time.monotonic()
        if now_seconds >= self._next_look_seconds:
            self._next_look_seconds = now_seconds + _LOOK_SECONDS
            while self._link.has_message():
                self._link.receive()

    def _next_slot(self) -> Sequence[torch.Tensor] | None:
        """Returns the tensors of the slot to fill next, if it is free."""
        if not self._is_set_up or not self._progress.num_free:
            return None
        return self._ring.slot(self._progress.num_filled)

    def _write(self, piece: Piece) -> int | None:
        """Copies rows to the next slot; returns the rows in it, `None` for a whole element."""
        if piece is _IN_PLACE:
            return None
        slot = self._ring.slot(self._progress.num_filled)
        if len(slot) != len(piece.tensors):
            raise ValueError(
                f"An element has {len(piece.tensors)} tensors, but the first one had {len(slot)}. "
                "All elements must have the same number."
            )
        for index, (place, source) in enumerate(zip(slot, piece.tensors, strict=True)):
            if source is place:
                continue  # `SlotCollate` made it there.
            if piece.num_rows is not None:
                place = place.narrow(0, piece.first_row, piece.num_rows)
            if place.shape != source.shape:
                raise ValueError(
                    f"Tensor at index {index} of an element is {TensorSpec.of(source)}, but "
                    "buffers were allocated for the first element, in which it is "
                    f"{TensorSpec.of(place)}. All elements must have the same shapes; for a "
                    "smaller last batch give rebatched_size or drop_last=True."
                )
            if place.dtype != source.dtype:
                self._warn_of_type(index, source, place)
            place.copy_(source)
        return None if piece.num_rows is None else piece.first_row + piece.num_rows

    def _warn_of_type(self, index: int, source: torch.Tensor, place: torch.Tensor) -> None:
        """Warns once that values are converted to the dtype of the first element."""
        if not self._has_warned_of_type:
            self._has_warned_of_type = True
            logger.warning(
                "Tensor at index %d of an element is %s, but in the first element it was %s: its "
                "values are converted to that type, and those of all further elements, too. "
                "Return tensors of one type from the dataset.",
                index,
                TensorSpec.of(source),
                TensorSpec.of(place),
            )
