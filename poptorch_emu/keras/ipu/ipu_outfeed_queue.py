"""Queues through which a function on the IPU sends values to the host while it runs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import keras
import torch
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from poptorch_emu.keras.capture.batches import with_leaves
from poptorch_emu.keras.capture.capture_state import current
from poptorch_emu.keras.capture.device_values import all_on_device, is_of_device
from poptorch_emu.keras.capture.host_values import to_host
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.options.base import note_accepted

__all__ = ["IPUOutfeedMode", "IPUOutfeedQueue", "IPUOutfeedQueueIterator", "ScopedIPUOutfeedQueue"]

_OF_2020 = ("feed_name", "replication_factor", "io_batch_size", "outfeed_all")


class IPUOutfeedMode(Enum):
    """The values that a queue keeps: all of them, or the last one (exact)."""

    ALL = "all"
    LAST = "get_last"


class IPUOutfeedQueue:
    """Receives a value in each iteration of a function, for the host to read (exact).

    Iterating the queue yields the values that have arrived and were not read yet, and ends when
    none are left. Other threads may iterate it while the function runs. The device never waits for
    a reader.
    """

    def __init__(
        self,
        outfeed_mode: IPUOutfeedMode | None = None,
        device_ordinal: int = 0,
        buffer_depth: int = 1,
        optimise_latency: bool = False,
        **of_2020: Any,
    ) -> None:
        """Creates an empty queue.

        Args:
            outfeed_mode: values to keep; all by default.
            device_ordinal: accepted.
            buffer_depth: accepted.
            optimise_latency: accepted.
            of_2020: arguments of older releases: accepted.

        Raises:
            ValueError: a value is out of range.
            TypeError: an argument does not exist.
        """
        mode = IPUOutfeedMode.ALL if outfeed_mode is None else outfeed_mode
        if isinstance(mode, str) and mode in [each.value for each in IPUOutfeedMode]:
            mode = IPUOutfeedMode(mode)
        if not isinstance(mode, IPUOutfeedMode):
            raise ValueError(
                f"outfeed_mode must be IPUOutfeedMode.ALL or IPUOutfeedMode.LAST, not {mode!r}."
            )
        if not isinstance(device_ordinal, int) or device_ordinal < 0:
            raise ValueError(f"device_ordinal must be 0 or more, not {device_ordinal!r}.")
        if not isinstance(buffer_depth, int) or buffer_depth < 1:
            raise ValueError(f"buffer_depth must be 1 or more, not {buffer_depth!r}.")
        for name in of_2020:
            if name not in _OF_2020:
                hint = did_you_mean(name, (*_OF_2020, "outfeed_mode", "buffer_depth"))
                raise TypeError(f"IPUOutfeedQueue has no argument {name!r}.{hint}")
            note_accepted(f"IPUOutfeedQueue({name}=...)")
        self._mode = mode
        # (Number of iterations, their rows). `_num_read` rows of the first entry are already read.
        self._values: deque[tuple[int, list[torch.Tensor]]] = deque()
        self._num_read = 0
        self._form: Any = None
        self._replicas = 1
        self._is_traced = False
        self._lock = threading.RLock()

    @property
    def enqueued(self) -> bool:
        """Whether a function that sends to the queue has been captured (exact)."""
        return self._is_traced

    @property
    def deleter(self) -> Any:
        """Empties the queue and returns `None` (exact)."""
        with self._lock:
            self._all_taken()

    def enqueue(self, tensors: Any) -> None:
        """Sends tensors, or a structure of tensors, from a function that runs on the IPU (exact).

        Raises:
            ValueError: the function sends to the queue twice.
            RuntimeError: the call is not in a function that runs on the IPU.
        """
        capture = current()
        if capture is None and in_symbolic_scope():
            return  # Keras only infers the shapes of a layer's outputs.
        if capture is None:
            raise RuntimeError(
                "IPUOutfeedQueue.enqueue is called outside of the IPU. Call it in the function "
                "that IPUStrategy.run runs."
            )
        capture.send(self, all_on_device(tensors))

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Returns the values since the last call, in the structure that was sent (exact).

        Args:
            wait_for_completion: accepted: `run` returns when the device is done.

        Returns:
            Tensors with one row for each iteration and, if there are several, for each replica; in
            the mode `LAST` those of the last iteration only.

        Raises:
            ValueError: no function that sends was captured, or nothing has arrived in that mode.
        """
        if not self._is_traced:
            raise ValueError(
                "IPUOutfeedQueue.dequeue is called before enqueue. Run a function that sends to "
                "the queue first."
            )
        with self._lock:
            values = self._all_taken()
        if self._mode is IPUOutfeedMode.ALL:
            return self._packed(self._joined(values))
        if not values:
            raise ValueError(
                "The IPUOutfeedQueue has received no values since the last dequeue(). Run a "
                "function that sends to the queue before dequeue()."
            )
        return self._packed([x[-1] for x in values[-1]])

    def __iter__(self) -> Iterator[Any]:
        """Returns an iterator over the values that have arrived."""
        return IPUOutfeedQueueIterator(self)

    def take(self) -> Any:
        """Returns the oldest value.

        Raises:
            IndexError: the queue is empty.
        """
        with self._lock:
            count, leaves = self._values[0]
            value = [x[self._num_read] for x in leaves]
            self._num_read += 1
            if self._num_read == count:
                self._values.popleft()
                self._num_read = 0
        return self._packed(value)

    def expect(self, form: Any, replicas: int) -> None:
        """Sets the structure of the values that will arrive, and the number of replicas."""
        with self._lock:
            self._form, self._replicas = form, replicas
            self._is_traced = True

    def put(self, count: int, leaves: Sequence[torch.Tensor]) -> None:
        """Stores the values of `count` iterations; leaves have axes (iteration, replica, ...)."""
        rows = [x[:, 0] if self._replicas == 1 else x for x in leaves]
        with self._lock:
            if self._mode is IPUOutfeedMode.LAST:
                self._all_taken()
                count, rows = 1, [x[-1:] for x in rows]
            self._values.append((count, rows))

    def _all_taken(self) -> list[list[torch.Tensor]]:
        """Returns all unread values, and empties the queue."""
        values = [leaves for _, leaves in self._values]
        if self._num_read:
            values[0] = [x[self._num_read :] for x in values[0]]
        self._values.clear()
        self._num_read = 0
        return values

    def _joined(self, values: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        if values:
            return [torch.cat(each) for each in zip(*values, strict=True)]
        replicas = () if self._replicas == 1 else (self._replicas,)
        return [
            torch.empty((0, *replicas, *leaf.shape), dtype=leaf.dtype)
            for leaf in keras.tree.flatten(self._form)
            if is_of_device(leaf)
        ]

    def _packed(self, leaves: Sequence[torch.Tensor]) -> Any:
        return with_leaves(self._form, map(to_host, leaves), is_of_device)


class IPUOutfeedQueueIterator:
    """Yields the values that have arrived in a queue, until none are left (exact)."""

    def __init__(self, outfeed_queue: IPUOutfeedQueue) -> None:
        """Creates an iterator over a queue."""
        self._queue = outfeed_queue

    def __iter__(self) -> IPUOutfeedQueueIterator:
        return self

    def __next__(self) -> Any:
        """Returns the next value.

        Raises:
            StopIteration: no value is left at this moment.
        """
        try:
            return self._queue.take()
        except IndexError:
            raise StopIteration from None


class ScopedIPUOutfeedQueue(IPUOutfeedQueue):
    """A queue that is emptied when it is dropped (exact)."""
