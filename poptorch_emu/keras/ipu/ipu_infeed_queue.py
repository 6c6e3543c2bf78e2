"""Queues by which the IPU reads a data set, in the loops of `ipu.loops`."""

from __future__ import annotations

from typing import Any, NoReturn

from poptorch_emu.keras.loops.capture_state import Capture
from poptorch_emu.keras.loops.infeed import Infeed
from poptorch_emu.options.base import note_accepted

__all__ = ["IPUInfeedQueue"]


class IPUInfeedQueue:
    """Reads a data set of TensorFlow, one element for each iteration of a loop (exact)."""

    def __init__(
        self, dataset: Any, device_ordinal: int | None = None, prefetch_depth: int | None = None
    ) -> None:
        """Reads nothing yet.

        Args:
            dataset: of TensorFlow, with shapes that are known.
            device_ordinal: accepted.
            prefetch_depth: accepted.

        Raises:
            ValueError: a shape is not known, or `prefetch_depth` is not from 1 to 255.
        """
        depth = 1 if prefetch_depth is None else prefetch_depth
        if not 1 <= depth <= 255:
            raise ValueError(f"prefetch_depth must be from 1 to 255, not {prefetch_depth!r}.")
        if prefetch_depth is not None:
            note_accepted("IPUInfeedQueue(prefetch_depth=...)")
        self._infeed = Infeed(dataset)
        self._is_dequeued = False

    @property
    def spec(self) -> Any:
        """What an element is made of."""
        return self._infeed.spec

    @property
    def initializer(self) -> None:
        """Nothing: a queue is ready when it is made (exact)."""

    @property
    def deleter(self) -> None:
        """Nothing: a queue is gone when it is dropped (exact)."""

    @property
    def dequeued(self) -> bool:
        """Whether a loop that reads the queue has been captured (exact)."""
        return self._is_dequeued

    @property
    def number_of_tuple_elements(self) -> int:
        """How many tensors an element has (exact)."""
        return len(self._infeed.shapes)

    def get_next(self) -> NoReturn:
        """Refuses to hand out an element.

        Raises:
            ValueError: always; loops take them.
        """
        raise ValueError(
            "Elements of an IPUInfeedQueue go to a loop: pass the queue to ipu.loops.repeat as "
            "infeed_queue. To call next() yourself, take iter(dataset) in the scope."
        )

    def dequeue(self, capture: Capture) -> Any:
        """Returns an element in a function that is captured."""
        self._is_dequeued = True
        return capture.read(self._infeed)
