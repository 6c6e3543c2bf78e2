"""Queues that let the IPU read a data set in the loops of `ipu.loops`."""

from __future__ import annotations

from typing import Any, NoReturn

from poptorch_emu.keras.capture.capture_state import Capture
from poptorch_emu.keras.settings.original_options import checked_depth
from poptorch_emu.keras.tensorflow.loops.infeed import Infeed
from poptorch_emu.options.base import note_accepted

__all__ = ["IPUInfeedQueue"]


class IPUInfeedQueue:
    """Reads a data set of TensorFlow, one element for each iteration of a loop (exact)."""

    def __init__(
        self, dataset: Any, device_ordinal: int | None = None, prefetch_depth: int | None = None
    ) -> None:
        """Creates a queue, which reads nothing yet.

        Args:
            dataset: TensorFlow data set whose shapes are known.
            device_ordinal: accepted.
            prefetch_depth: accepted.

        Raises:
            ValueError: a shape is not known, or `prefetch_depth` is not from 1 to 255.
        """
        if prefetch_depth is not None:
            checked_depth("prefetch_depth", prefetch_depth)
            note_accepted("IPUInfeedQueue(prefetch_depth=...)")
        self._infeed = Infeed(dataset)
        self._is_dequeued = False

    @property
    def spec(self) -> Any:
        """Structure, shapes and types of an element."""
        return self._infeed.spec

    @property
    def initializer(self) -> None:
        """`None`, because a queue is ready when it is created (exact)."""

    @property
    def deleter(self) -> None:
        """`None`, because a queue needs no deletion (exact)."""

    @property
    def dequeued(self) -> bool:
        """Whether a loop that reads the queue has been captured (exact)."""
        return self._is_dequeued

    @property
    def number_of_tuple_elements(self) -> int:
        """Number of tensors in an element (exact)."""
        return len(self._infeed.shapes)

    def get_next(self) -> NoReturn:
        """Raises an error, because only loops may read elements.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "Elements of an IPUInfeedQueue go to a loop: pass the queue to ipu.loops.repeat as "
            "infeed_queue. To call next() yourself, take iter(dataset) in the scope."
        )

    def dequeue(self, capture: Capture) -> Any:
        """Returns an element for a function that is being captured."""
        self._is_dequeued = True
        return capture.read(self._infeed)
