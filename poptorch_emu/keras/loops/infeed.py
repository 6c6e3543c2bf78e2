"""Data sets of TensorFlow whose elements the device reads, in functions that are captured."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.loops.capture_state import current, suspended
from poptorch_emu.keras.loops.host_values import check_integers, tensorflow
from poptorch_emu.keras.loops.safe_data_sets import can_be_bundled
from poptorch_emu.keras.loops.turns import reading

Element = list[np.ndarray]  # The arrays of its tensors.

# Small elements are read several at a time: a call of TensorFlow takes longer than one of them.
_MOST_AT_ONCE, _MOST_BYTES_AT_ONCE = 64, 2**20
# Of elements that are read beforehand, where a data set does not say how many there are.
_MOST_HELD_BYTES = 2**28
# Those of which both NumPy and the device have numbers.
_TYPES = {np.bool_, np.float16, np.float32, np.float64}
_TYPES |= {getattr(np, f"{sign}int{bits}") for sign in ("u", "") for bits in (8, 16, 32, 64)}


class Infeed:
    """An iterator over a data set, for the device alone.

    Attributes:
        spec: of an element.
        shapes: of its tensors.
        num_bytes: of all of them.
    """

    def __init__(self, dataset: Any, *, is_of_run: bool = False) -> None:
        """Reads nothing yet.

        Args:
            dataset: of TensorFlow.
            is_of_run: whether each run of a function begins the data anew.

        Raises:
            ValueError: a shape is not known.
            TypeError: the device has no such elements.
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
        self._cardinality: int | None = None  # Not asked for yet.
        self._num_read = 0
        self._held: deque[Element] = deque()  # Read, but not used yet.
        self._lock = threading.RLock()

    def __iter__(self) -> Iterator[Any]:
        """Returns what goes through all elements that are left."""
        return self if current() is None else self._loop()

    def __next__(self) -> Any:
        """Returns the next element in a function that is captured.

        Raises:
            RuntimeError: there is none.
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
        """Returns how many elements are left.

        Raises:
            ValueError: there is no end of them.
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
        """How many elements the data set has, or one of TensorFlow's numbers for what it says."""
        if self._cardinality is None:
            with suspended():
                self._cardinality = int(self._dataset.cardinality())
        return self._cardinality

    @property
    def may_be_read_early(self) -> bool:
        """Whether elements of a later run may be read in this one: nothing tells when they were."""
        return self._at_once > 1 and not self._is_of_run

    @property
    def num_held(self) -> int:
        """How many elements were read, but not taken yet."""
        return len(self._held)

    def check(self, count: int) -> None:
        """Checks that so many elements are left, as far as can be known.

        If the data set does not say so, they are read, up to a bound of memory.

        Raises:
            OutOfRangeError: of TensorFlow; there are not so many.
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
        """Returns one of the next elements, with tensors of PyTorch; they stay the next ones.

        Raises:
            OutOfRangeError: of TensorFlow; there are not so many.
        """
        with self._lock:
            self.hold(index + 1)
            tensors = stacked([self._held[index]], [])
            return self.packed([each[0] for each in tensors])

    def put_back(self, elements: Sequence[Element]) -> None:
        """Makes elements that were taken the next ones again."""
        with self._lock:
            self._held.extendleft(reversed(elements))

    def take(self, count: int) -> list[Element]:
        """Returns the arrays of the next elements, all or none.

        Raises:
            OutOfRangeError: of TensorFlow; there are not so many.
        """
        with self._lock:
            self.hold(count)
            return [self._held.popleft() for _ in range(count)]

    def begin_run(self) -> None:
        """Begins the data anew, if each run does."""
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
        """Reads until so many elements are there.

        Raises:
            OutOfRangeError: of TensorFlow; there are not so many.
        """
        with self._lock:
            if not self.has(count):
                raise self._ended(count, len(self._held))

    def has(self, count: int) -> bool:
        """Reads until so many elements are there, and returns whether there are."""
        with self._lock:
            while len(self._held) < count and self._read():
                pass
            return len(self._held) >= count

    def _ended(self, count: int, left: int) -> Exception:
        error: Exception = tensorflow().errors.OutOfRangeError(
            None,
            None,
            f"A loop on the IPU takes {count} elements, but {self._dataset} has only {left} more. "
            "They are kept. Run fewer iterations, or repeat() the data.",
        )
        return error

    def _num_unread(self) -> int:
        return self.cardinality - self._num_read

    def _bundled(self) -> Any:
        """Returns the data set with several elements in each of its own.

        They are made by one thread. If it were asked for each element, and waited each time, that
        would take longer than the elements of a small model.
        """
        if self._at_once == 1:
            return self._dataset
        prefetched = type(self._dataset).__name__.strip("_").startswith("Prefetch")
        dataset = self._dataset._inputs()[0] if prefetched else self._dataset
        return dataset.batch(self._at_once).prefetch(2)

    def _read(self) -> bool:
        """Reads some elements, and returns whether there were any."""
        tf = tensorflow()
        with suspended(), reading():
            if self._iterator is None:
                self._iterator = iter(self._bundled())
            try:  # Without the structure of an element, which takes as long as the rest.
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
    """Infeeds, ranges and others of these side by side, for a function that is captured."""

    def __init__(self, sources: Sequence[Any]) -> None:
        """Takes infeeds and sequences; at least one is an infeed, or they are ranges."""
        self._sources = sources

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yields what all have next, as long as all have something."""
        capture = current()
        assert capture is not None
        count = capture.known_count()
        for number in capture.run_loop(range(self.num_left(capture) if count is None else count)):
            yield self.entry(capture, number)

    def num_left(self, capture: Any) -> int:
        """Returns for how many iterations there is something."""
        return min(
            each.num_left() // capture.replicas
            if isinstance(each, Infeed)
            else each.num_left(capture)
            if isinstance(each, Joined)
            else len(each)
            for each in self._sources
        )

    def entry(self, capture: Any, number: Any) -> tuple[Any, ...]:
        """Returns what all have for an iteration."""
        return tuple(
            capture.read(each)
            if isinstance(each, Infeed)
            else each.entry(capture, number)
            if isinstance(each, Joined)
            else _entry(each, number)
            for each in self._sources
        )


def _entry(values: Any, number: Any) -> Any:
    """Returns an entry of a sequence by a number of Python, or of a range by one of the device."""
    if not isinstance(number, torch.Tensor):
        return values[number]
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
    """Returns the arrays of elements below one another, as the device takes them.

    Args:
        elements: the arrays of each.
        places: where they are put; an empty list gets the places, for as many elements again. New
            memory for each call would take longer than the copies.
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
