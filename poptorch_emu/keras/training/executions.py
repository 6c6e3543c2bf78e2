"""The batches of each execution: no batch of Keras is lost, and none comes twice.

Keras draws a whole execution to learn the shapes of an unbuilt model, and then starts the data
again. Its last execution of an epoch may draw more batches than the epoch has. Both hardly matter
with one batch an execution, the only number that Keras itself allows with PyTorch.

Steps are those of one replica: each step takes a batch for every replica. Keras's own class counts
batches where it says steps.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from numbers import Integral
from typing import Any

from keras.src.backend.torch import trainer
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import get_torch_dataloader
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

_OF_KERAS = trainer.TorchEpochIterator


def check_steps(steps_per_execution: Any) -> None:
    """Checks the number of steps of an execution.

    Raises:
        ValueError: `steps_per_execution` is not a positive integer.
    """
    steps = steps_per_execution
    if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 1:
        raise ValueError(
            f"steps_per_execution is {steps!r}, but must be a positive integer: how many batches "
            "an execution on the IPUs takes. Call compile(steps_per_execution=1), or give a larger "
            "number for fewer and longer executions."
        )


class Executions(_OF_KERAS):  # type: ignore[misc, valid-type]
    """Yields (first step, last step, batches) of each execution of an epoch.

    Attributes:
        leaves_rest_out: whether batches at the end that are too few for all replicas are dropped
            instead of run by one replica.
    """

    def __init__(self, replicas: Callable[[], int], *args: Any, **kwargs: Any) -> None:
        """Takes the function that counts replicas, and the arguments of Keras's own class."""
        self._count_replicas = replicas
        self.leaves_rest_out = False
        super().__init__(*args, **kwargs)
        self._once: Iterator[Any] | None = None  # Data that can be iterated only once.
        self._begun: Iterator[Any] | None = None  # Data that `shapes` has begun to read.

    @cached_property
    def replicas(self) -> int:
        """Number of replicas; first read when the model is built."""
        return self._count_replicas()

    @property
    def steps_per_execution(self) -> int:
        """Number of batches for all replicas together; the number for one replica is assigned."""
        return self._steps * self.replicas

    @steps_per_execution.setter
    def steps_per_execution(self, steps: int) -> None:
        self._steps = steps

    @property
    def num_batches(self) -> int | None:
        """Number of steps in the epoch; `None` if it is unknown."""
        batches: int | None = super().num_batches
        if batches is None:
            return None
        return batches // self.replicas if self.leaves_rest_out else -(-batches // self.replicas)

    def leave_rest_out(self) -> None:
        """Drops batches at the end that are too few for all replicas, as training does.

        Raises:
            ValueError: an epoch has fewer batches than replicas.
        """
        self.leaves_rest_out = True
        batches = super().num_batches
        if batches is None:
            return
        if batches < self.replicas:
            raise ValueError(
                f"An epoch has {batches} batches, but each of {self.replicas} replicas takes one "
                f"at every step. Give a multiple of {self.replicas}."
            )
        self._warn_of_rest(batches)
        if self.steps_per_epoch:
            self.steps_per_epoch: int | None = self._without_rest(batches)

    def shapes(self) -> Iterator[tuple[int, int, list[Any]]]:
        """Yields an execution of one batch, to build the model; the batch is used again later."""
        adapter = self.data_adapter
        if isinstance(adapter, PyDatasetAdapter):  # Iterating it would start workers.
            first = adapter._standardize_batch(adapter.py_dataset[0])
            yield 0, 0, list(get_torch_dataloader([first]))
            return
        data = iter(self._get_iterator())
        batches = list(itertools.islice(data, 1))
        if self._once is not None:
            self._once = itertools.chain(batches, data)
        elif not isinstance(adapter, ArrayDataAdapter):  # Arrays can be iterated again.
            self._begun = itertools.chain(batches, data)
        if batches:
            yield 0, 0, batches

    def _get_iterator(self) -> Any:
        """Returns the iterator of an epoch, or of all epochs if data can be iterated only once."""
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
        """Returns the next execution, which does not exceed the epoch or the data.

        Raises:
            StopIteration: the epoch is over.
        """
        first, _, iterator = next(self._epoch_iterator)
        steps: int = self.steps_per_execution
        seen: int = self._steps_seen - steps  # Keras has already counted this execution.
        limits = [steps]  # All limits count batches.
        if self.steps_per_epoch:
            limits.append(self.steps_per_epoch - first)
        if self._num_batches:
            limits.append(self._num_batches - seen)
        wanted = self._without_rest(max(min(limits), 0))
        batches = list(itertools.islice(iterator, wanted))
        self._steps_seen: int = seen + len(batches)
        if len(batches) < wanted or (self.steps_per_epoch and not wanted):
            with self.catch_stop_iteration():  # Records the number of batches, with a warning.
                raise StopIteration
            self._warn_of_rest(len(batches))
            del batches[self._without_rest(len(batches)) :]
        if not batches:
            raise StopIteration
        return first // self.replicas, (first + len(batches) - 1) // self.replicas, batches

    def _without_rest(self, batches: int) -> int:
        return batches - batches % self.replicas if self.leaves_rest_out else batches

    def _warn_of_rest(self, batches: int) -> None:
        rest = batches - self._without_rest(batches)
        if rest:
            warnings.warn(
                f"The batches do not divide among {self.replicas} replicas: the last {rest} of an "
                "epoch are left out. Give a number of batches that is a multiple of "
                f"{self.replicas}.",
                stacklevel=2,
            )


_replicas: ContextVar[Callable[[], int] | None] = ContextVar("replicas", default=None)


@contextmanager
def drawn_by_executions(replicas: Callable[[], int]) -> Iterator[None]:
    """Lets `fit`, `evaluate` and `predict` of Keras read their data through `Executions`.

    Args:
        replicas: function that returns the number of replicas, once the model is built.
    """
    token = _replicas.set(replicas)
    try:
        yield
    finally:
        _replicas.reset(token)


def _iterator(*args: Any, **kwargs: Any) -> Any:
    """Returns an iterator over an epoch: ours within the context, otherwise Keras's own."""
    replicas = _replicas.get()
    if replicas is None:
        return _OF_KERAS(*args, **kwargs)
    return Executions(replicas, *args, **kwargs)


trainer.TorchEpochIterator = _iterator
