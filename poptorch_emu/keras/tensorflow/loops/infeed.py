"""Data sets of TensorFlow whose elements the device reads, in functions that are captured."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.capture_state import current, suspended
from poptorch_emu.keras.capture.host_values import tensorflow
from poptorch_emu.keras.capture.integers import check_integers
from poptorch_emu.keras.tensorflow.loops.safe_data_sets import can_be_bundled
from poptorch_emu.keras.tensorflow.loops.turns import reading

Element = list[np.ndarray]  # Arrays of the tensors in an element.

# Limits for reading small elements in groups, because one call of TensorFlow takes long.
_MOST_AT_ONCE, _MOST_BYTES_AT_ONCE = 64, 2**20
# Limit for elements that are read in advance, if a data set does not know its size.
_MOST_HELD_BYTES = 2**28
# Types of elements that both NumPy and the device support.
_TYPES = {np.bool_, np.float16, np.float32, np.float64}
_TYPES |= {getattr(np, f"{sign}int{bits}") for sign in ("u", "") for bits in (8, 16, 32, 64)}


class Infeed:
    """An iterator over a data set that only the device reads.

    Attributes:
        spec: structure, shapes and types of an element.
        shapes: shapes of the tensors of an element.
        num_bytes: bytes of all tensors of an element.
    """

    def __init__(self, dataset: Any, *, is_of_run: bool = False) -> None:
        """Prepares an iterator, which reads nothing yet.

        Args:
            dataset: data set of TensorFlow.
            is_of_run: whether each run of a function starts the data again.

        Raises:
            ValueError: a shape is not known.
            TypeError: the device does not support the elements.
        """
        tf = tensorflow()
        self.spec = dataset.element_spec
        for each in tf.nest.flatten(self.spec):
            if not isinstance(each, tf.TensorSpec):
                raise TypeError(
                    f"The elements of {dataset} are {each}, but an IPU reads tensors with a "
                    "shape. Convert them with map()."
                )
            if each.dtype.as_numpy_dtype not in _TYPES:
                raise TypeError(f"Unsupported data type for input: {each.dtype.name}")
            if not each.shape.is_fully_defined():
                raise ValueError(
                    f"An element of {dataset} has the shape {each.shape}, but on an IPU all shapes "
                    "are known beforehand. Call batch(..., drop_remainder=True), and set_shape in "
                    "map()."
                )
        leaves = tf.nest.flatten(self.spec)
        self.shapes = [tuple(each.shape) for each in leaves]
        self.num_bytes = sum(each.dtype.size * each.shape.num_elements() for each in leaves)
        most = _MOST_AT_ONCE if can_be_bundled(dataset) else 1
        self._at_once = max(min(most, _MOST_BYTES_AT_ONCE // max(self.num_bytes, 1)), 1)
        rows = [] if self._at_once == 1 else [None]
        self._types = {
            "output_types": [each.dtype for each in leaves],
            "output_shapes": [[*rows, *each.shape] for each in leaves],
        }
        self._dataset = dataset
        self._is_of_run = is_of_run
        self._iterator: Any = None
        self._cardinality: int | None = None  # `None` until it is first asked for.
        self._num_read = 0
        self._held: deque[Element] = deque()  # Elements that are read, but not used yet.
        self._lock = threading.RLock()

    def __iter__(self) -> Iterator[Any]:
        """Returns an iterator over all remaining elements."""
        return self if current() is None else self._loop()

    def __next__(self) -> Any:
        """Returns the next element, in a function that is captured.

        Raises:
            RuntimeError: no function is being captured.
        """
        capture = current()
        if capture is None:
            raise RuntimeError(
                "This iterator was made in the scope of an IPUStrategy, so that its elements go to "
                "the IPU: call next() in the function that strategy.run runs. For an ordinary one, "
                "make it outside of the scope, or IPUStrategy(enable_dataset_iterators=False)."
            )
        return capture.read(self)

    get_next = __next__

    def num_left(self) -> int:
        """Returns the number of remaining elements.

        Raises:
            ValueError: the data set is infinite.
        """
        data = tensorflow().data
        if self.cardinality == data.INFINITE_CARDINALITY:
            raise ValueError(
                f"{self._dataset} has no end. Loop over range(n), and call next() of its iterator."
            )
        with self._lock:
            if self.cardinality != data.UNKNOWN_CARDINALITY:
                return self._num_unread() + len(self._held)
            while self._read():
                pass
            return len(self._held)

    @property
    def cardinality(self) -> int:
        """Size of the data set, or TensorFlow's constant for an unknown or infinite size."""
        if self._cardinality is None:
            with suspended():
                self._cardinality = int(self._dataset.cardinality())
        return self._cardinality

    @property
    def may_be_read_early(self) -> bool:
        """Whether elements for a later run may be read early, without a visible effect."""
        return self._at_once > 1 and not self._is_of_run

    @property
    def num_held(self) -> int:
        """Number of elements that are read, but not taken yet."""
        return len(self._held)

    def check(self, count: int) -> None:
        """Checks that `count` elements remain, as far as that can be known.

        If the data set does not know its size, the elements are read, up to a limit of memory.

        Raises:
            OutOfRangeError: fewer elements remain (the error is TensorFlow's).
        """
        data = tensorflow().data
        with self._lock:
            if self.cardinality == data.UNKNOWN_CARDINALITY:
                self.hold(min(count, max(_MOST_HELD_BYTES // max(self.num_bytes, 1), 1)))
            elif self.cardinality != data.INFINITE_CARDINALITY:
                left = self._num_unread() + len(self._held)
                if left < count:
                    raise self._ended(count, left)

    def peek(self, index: int) -> Any:
        """Returns one of the next elements as tensors of PyTorch, without taking it.

        Raises:
            OutOfRangeError: fewer elements remain (the error is TensorFlow's).
        """
        with self._lock:
            self.hold(index + 1)
            tensors = stacked([self._held[index]], [])
            return self.packed([each[0] for each in tensors])

    def put_back(self, elements: Sequence[Element]) -> None:
        """Puts elements that were taken back, as the next ones."""
        with self._lock:
            self._held.extendleft(reversed(elements))

    def take(self, count: int) -> list[Element]:
        """Returns the arrays of the next `count` elements, or takes none.

        Raises:
            OutOfRangeError: fewer elements remain (the error is TensorFlow's).
        """
        with self._lock:
            self.hold(count)
            return [self._held.popleft() for _ in range(count)]

    def begin_run(self) -> None:
        """Starts the data again, if each run does so."""
        if self._is_of_run:
            with self._lock:
                self._iterator, self._num_read = None, 0
                self._held.clear()

    def packed(self, tensors: Sequence[Any]) -> Any:
        """Returns tensors in the structure of an element."""
        return tensorflow().nest.pack_sequence_as(self.spec, list(tensors))

    def _loop(self) -> Iterator[Any]:
        for (element,) in Joined([self]):
            yield element

    def hold(self, count: int) -> None:
        """Reads until `count` elements are held.

        Raises:
            OutOfRangeError: fewer elements remain (the error is TensorFlow's).
        """
        with self._lock:
            if not self.has(count):
                raise self._ended(count, len(self._held))

    def has(self, count: int) -> bool:
        """Reads until `count` elements are held; returns whether there were enough."""
        with self._lock:
            while len(self._held) < count and self._read():
                pass
            return len(self._held) >= count

    def _ended(self, count: int, left: int) -> Exception:
        error: Exception = tensorflow().errors.OutOfRangeError(
            None,
            None,
            f"A loop on the IPU takes {count} elements, but {self._dataset} has only {left} more. "
            "They are kept for the next loop. Run fewer iterations, or repeat() the data.",
        )
        return error

    def _num_unread(self) -> int:
        return self.cardinality - self._num_read

    def _bundled(self) -> Any:
        """Returns a data set with several elements in each of its elements.

        One background thread creates them. Waiting for each single element would take longer than
        the elements of a small model.
        """
        if self._at_once == 1:
            return self._dataset
        prefetched = type(self._dataset).__name__.strip("_").startswith("Prefetch")
        dataset = self._dataset._inputs()[0] if prefetched else self._dataset
        return dataset.batch(self._at_once).prefetch(2)

    def _read(self) -> bool:
        """Reads one or several elements; returns whether there were any."""
        tf = tensorflow()
        with suspended(), reading():
            if self._iterator is None:
                self._iterator = iter(self._bundled())
            try:  # The iterator's `next` takes twice as long, because it restores structures.
                tensors = tf.raw_ops.IteratorGetNext(
                    iterator=self._iterator._iterator_resource, **self._types
                )
            except tf.errors.OutOfRangeError:
                return False
        arrays = [np.asarray(memoryview(tensor)) for tensor in tensors]
        elements = [arrays] if self._at_once == 1 else list(map(list, zip(*arrays, strict=True)))
        self._num_read += len(elements)
        self._held.extend(elements)
        return True


class Joined:
    """Infeeds, ranges and other sources side by side, in a function that is captured."""

    def __init__(self, sources: Sequence[Any]) -> None:
        """Takes infeeds and sequences; at least one is an infeed, or all are ranges."""
        self._sources = sources

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yields the next entries of all sources, as long as all have one."""
        capture = current()
        assert capture is not None
        count = capture.known_count()
        count = self.num_left(capture) if count is None else count
        for number in capture.run_loop(range(count), is_of_python=not self._has_data()):
            yield self.entry(capture, number)

    def _has_data(self) -> bool:
        """Returns whether a source is a data set, so that the loop is one of TensorFlow."""
        return any(
            isinstance(each, Infeed) or (isinstance(each, Joined) and each._has_data())
            for each in self._sources
        )

    def num_left(self, capture: Any) -> int:
        """Returns the number of iterations that all sources have entries for."""
        return min(
            each.num_left() // capture.replicas
            if isinstance(each, Infeed)
            else each.num_left(capture)
            if isinstance(each, Joined)
            else len(each)
            for each in self._sources
        )

    def entry(self, capture: Any, number: Any) -> tuple[Any, ...]:
        """Returns the entries of all sources for an iteration."""
        return tuple(
            capture.read(each)
            if isinstance(each, Infeed)
            else each.entry(capture, number)
            if isinstance(each, Joined)
            else _entry(each, number)
            for each in self._sources
        )


class Ordinals(Sequence[int]):
    """The numbers of the elements of a data set, which TensorFlow counts in 64 bits."""

    def __init__(self, start: int) -> None:
        """Takes the first number."""
        self.start = start

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: Any) -> Any:
        return self.start + index


def _entry(values: Any, number: Any) -> Any:
    """Returns the entry of a sequence at `number`, which may be on the device for a range."""
    if not isinstance(number, torch.Tensor):
        return values[number]
    if isinstance(values, (range, Ordinals)):
        found = number.long() + values.start
        if isinstance(values, range):
            found = number * values.step + values.start
        found.is_number_of_python = True  # type: ignore[attr-defined]
        return found
    raise compiler_error(
        f"A loop on the IPU goes over a {type(values).__name__} of Python side by side with a "
        "range or a data set, but all its iterations are one program. Make the values a part of "
        "the data set, or loop over a tensor of TensorFlow."
    )


def stacked(elements: Sequence[Element], places: list[np.ndarray]) -> list[torch.Tensor]:
    """Returns the arrays of elements stacked along a new first axis, for the device.

    Args:
        elements: arrays of each element.
        places: memory for the results; an empty list is filled with arrays that can be reused for
            the same number of elements, because new memory in each call would take longer than the
            copies.
    """
    if not places:
        places += [
            np.empty((len(elements), *each.shape), _dtype_of_device(each)) for each in elements[0]
        ]
    for arrays, place in zip(zip(*elements, strict=True), places, strict=True):
        np.stack(arrays, out=place)
        check_integers(place)
    return [torch.from_numpy(place) for place in places]


def _dtype_of_device(array: np.ndarray) -> Any:
    return np.float32 if array.dtype == np.float64 else array.dtype
