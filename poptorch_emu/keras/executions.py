"""The batches of each execution: no batch that Keras is given is lost, and none comes twice.

Keras draws a whole execution to learn the shapes of an unbuilt model, and begins the data anew
afterwards. Its last execution of an epoch may draw more batches than the epoch has. Little of that
shows with one batch an execution, which is all that Keras itself allows with PyTorch.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

from keras.src.backend.torch import trainer
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import get_torch_dataloader
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

_OF_KERAS = trainer.TorchEpochIterator


def check_steps(steps_per_execution: Any) -> None:
    """Checks how many batches an execution is to have.

    Raises:
        ValueError: it is no positive integer.
    """
    steps = steps_per_execution
    if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 1:
        raise ValueError(
            f"steps_per_execution is {steps!r}, but must be a positive integer: how many batches "
            "an execution on the IPUs takes. Call compile(steps_per_execution=1), or give a larger "
            "number for fewer and longer executions."
        )


class Executions(_OF_KERAS):  # type: ignore[misc, valid-type]
    """Yields (first step, last step, batches) of each execution of an epoch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what Keras's own class takes."""
        super().__init__(*args, **kwargs)
        self._once: Iterator[Any] | None = None  # Of data that can be gone through only once.
        self._begun: Iterator[Any] | None = None  # What `shapes` has begun.

    def shapes(self) -> Iterator[tuple[int, int, list[Any]]]:
        """Yields a first execution for a build, whose one batch comes again."""
        adapter = self.data_adapter
        if isinstance(adapter, PyDatasetAdapter):  # Its workers would go on with the next batch.
            first = adapter._standardize_batch(adapter.py_dataset[0])
            yield 0, 0, list(get_torch_dataloader([first]))
            return
        data = iter(self._get_iterator())
        batches = list(itertools.islice(data, 1))
        if self._once is not None:
            self._once = itertools.chain(batches, data)
        elif not isinstance(adapter, ArrayDataAdapter):  # Arrays can be begun anew.
            self._begun = itertools.chain(batches, data)
        if batches:
            yield 0, 0, batches

    def _get_iterator(self) -> Any:
        """Returns what an epoch, or all of them, goes through."""
        if self._once is not None:
            return self._once
        if self._begun is not None:
            begun, self._begun = self._begun, None
            return begun
        data = super()._get_iterator()
        if isinstance(self.data_adapter, GeneratorDataAdapter):
            data = self._once = iter(data)
        return data

    def __next__(self) -> tuple[int, int, list[Any]]:
        """Returns the next execution, which has no more batches than the epoch, or the data.

        Raises:
            StopIteration: the epoch is over.
        """
        first, _, iterator = next(self._epoch_iterator)
        steps: int = self.steps_per_execution
        seen: int = self._steps_seen - steps  # Of the data; Keras has counted this execution.
        limits = [steps]
        if self.steps_per_epoch:
            limits.append(self.steps_per_epoch - first)
        if self._num_batches:
            limits.append(self._num_batches - seen)
        wanted = max(min(limits), 0)
        batches = list(itertools.islice(iterator, wanted))
        self._steps_seen: int = seen + len(batches)
        if len(batches) < wanted:
            self._end_data()
        if not batches:
            raise StopIteration
        return first, first + len(batches) - 1, batches

    def _end_data(self) -> None:
        """Notes how many batches the data had, as Keras does, and warns as Keras does."""
        with self.catch_stop_iteration():
            raise StopIteration


_lock = threading.Lock()
_num_calls = 0


@contextmanager
def drawn_by_executions() -> Iterator[None]:
    """Lets `fit`, `evaluate` and `predict` of Keras go through their data by `Executions`."""
    global _num_calls
    with _lock:
        _num_calls += 1
        trainer.TorchEpochIterator = Executions
    try:
        yield
    finally:
        with _lock:
            _num_calls -= 1
            if not _num_calls:
                trainer.TorchEpochIterator = _OF_KERAS
