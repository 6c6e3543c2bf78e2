"""Data sets of TensorFlow whose elements the device reads, in functions that are captured."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from poptorch_emu.keras.loops.capture_state import current, suspended
from poptorch_emu.keras.loops.host_values import tensorflow

Element = list[np.ndarray]  # The arrays of its tensors.


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
            if not (each.dtype.is_floating or each.dtype.is_integer or each.dtype.is_bool):
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
        self._types = {
            "output_types": [each.dtype for each in leaves],
            "output_shapes": [each.shape for each in leaves],
        }
        self._dataset = dataset
        self._is_of_run = is_of_run
        self._iterator: Any = None
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

    def enumerated(self, start: int) -> Iterator[tuple[Any, Any]]:
        """Yields all elements that are left with their numbers, in a function that is captured."""
        capture = current()
        assert capture is not None
        count = capture.known_count()
        if count is None:
            count = self.num_left() // capture.replicas
        for number in capture.run_loop(range(start, start + count)):
            yield number, capture.read(self)

    def num_left(self) -> int:
        """Returns how many elements are left.

        Raises:
            ValueError: there is no end of them.
        """
        tf = tensorflow()
        if int(self._dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                f"{self._dataset} has no end. Loop over range(n), and call next() of its iterator."
            )
        with self._lock:
            while self._read_one():
                pass
            return len(self._held)

    def peek(self, index: int) -> Any:
        """Returns one of the next elements, with tensors of PyTorch; they stay the next ones.

        Raises:
            OutOfRangeError: of TensorFlow; there are not so many.
        """
        with self._lock:
            self.hold(index + 1)
            return self.packed(stacked([self._held[index]], self.shapes))

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
                self._iterator = None
                self._held.clear()

    def packed(self, tensors: Sequence[Any]) -> Any:
        """Returns tensors in the structure of an element."""
        return tensorflow().nest.pack_sequence_as(self.spec, list(tensors))

    def _loop(self) -> Iterator[Any]:
        for _, element in self.enumerated(0):
            yield element

    def hold(self, count: int) -> None:
        """Reads until so many elements are there.

        Raises:
            OutOfRangeError: of TensorFlow; there are not so many.
        """
        while len(self._held) < count:
            if not self._read_one():
                raise tensorflow().errors.OutOfRangeError(
                    None,
                    None,
                    f"A loop on the IPU takes {count} elements, but {self._dataset} has only "
                    f"{len(self._held)} more. They are kept. Run fewer iterations, or repeat() the "
                    "data.",
                )

    def _read_one(self) -> bool:
        tf = tensorflow()
        with suspended():
            if self._iterator is None:
                self._iterator = iter(self._dataset)
            try:  # Without the structure of an element, which takes as long as the rest.
                tensors = tf.raw_ops.IteratorGetNext(
                    iterator=self._iterator._iterator_resource, **self._types
                )
            except tf.errors.OutOfRangeError:
                return False
        self._held.append([tensor.numpy() for tensor in tensors])
        return True


def stacked(
    elements: Sequence[Sequence[np.ndarray]], shapes: Sequence[tuple[int, ...]] | None = None
) -> list[torch.Tensor]:
    """Returns the arrays of elements below one another, as the device takes them.

    Args:
        elements: the arrays of each.
        shapes: of the results, for a single element.
    """
    found = []
    for number, arrays in enumerate(zip(*elements, strict=True)):
        tensor = torch.from_numpy(np.stack(arrays))
        tensor = tensor.float() if tensor.dtype is torch.float64 else tensor
        found.append(tensor if shapes is None else tensor.reshape(shapes[number]))
    return found
