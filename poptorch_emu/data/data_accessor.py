"""`poptorch.AsynchronousDataAccessor`: loads elements while the model works on earlier ones."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from multiprocessing import get_start_method
from operator import index
from typing import TYPE_CHECKING, Any

import torch

from poptorch_emu.data.batch_source import batch_source
from poptorch_emu.enums import SharingStrategy
from poptorch_emu.errors import require
from poptorch_emu.module_loading import LateModule
from poptorch_emu.structure import ICustomArgParser, registered_parsers

if TYPE_CHECKING:
    from poptorch_emu.data import accessor_reader, accessor_worker
else:
    accessor_reader = LateModule("poptorch_emu.data.accessor_reader")
    accessor_worker = LateModule("poptorch_emu.data.accessor_worker")

_SECONDS_PER_MILLISECOND = 1e-3


class AsynchronousDataAccessor:
    """Iterates a dataset in its own process, into a ring of buffers in shared memory (exact).

    An element is a tensor, a flat list or tuple of tensors (which comes back as a list), a flat
    dict of tensors, or of a type registered by `registerCustomArgParser`. All elements must have
    the shapes of the first one. Other dtypes are converted to its dtypes, with one warning. The
    tensors of an element alias the ring, so the next `next()` overwrites them. Clone tensors that
    you keep.

    Attributes:
        rebatched_size: rows of each element, if elements are joined and cut again.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy | str = SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
    ) -> None:
        """Starts the worker, and returns when it has loaded the first element.

        Args:
            dataset: any iterable, often a `DataLoader`. All strategies but `Fork` pickle it.
            buffer_size: number of elements in the ring.
            miss_sleep_time_in_ms: shortest wait, in milliseconds, for an element that is not ready.
                Each further wait is twice as long. After 2 ms the accessor stops polling and is
                woken by the worker.
            load_indefinitely: whether the worker starts from the beginning at the end of the data.
            early_preload: whether the worker fills the ring before the first `iter()`.
            sharing_strategy: strategy, or its name, by which the worker gets the dataset. `Fork`
                copies nothing. `ForkServer` passes it by value. `SharedMemory` moves its tensors
                into shared memory, with an open file for each. `FileSystem` passes it by value in a
                file.
            rebatched_size: number of rows of each element. Elements of the dataset are joined and
                cut again. Rows that remain at the end are dropped, unless the dataset has
                `rebatched_drop_last == False`.

        Raises:
            Error: `dataset` is already an asynchronous `DataLoader`, or the worker failed.
            AssertionError: `rebatched_size` is too small, or is missing although
                `drop_last=False` needs it.
            TypeError: `buffer_size` or `rebatched_size` is not an integer.
            ValueError: `buffer_size` is less than 1, or `miss_sleep_time_in_ms` less than 0.
        """
        source = batch_source(dataset, rebatched_size)
        if rebatched_size is not None:
            rebatched_size = _whole("rebatched_size", rebatched_size)
        buffer_size = _whole("buffer_size", buffer_size)
        require(
            rebatched_size is None or rebatched_size > 1,
            f"rebatched_size must be None or greater than 1, not {rebatched_size}.",
        )
        strategy = _strategy_of(sharing_strategy)
        if buffer_size < 1:
            raise ValueError(f"buffer_size must be at least 1, not {buffer_size}.")
        if not miss_sleep_time_in_ms >= 0:
            raise ValueError(
                f"miss_sleep_time_in_ms must be at least 0, not {miss_sleep_time_in_ms}."
            )
        self.rebatched_size = rebatched_size
        self._description = f"of a {type(dataset).__name__}, with a ring of {buffer_size} elements"
        self._num_elements = source.counter(rebatched_size)
        settings = accessor_worker.WorkerSettings(
            num_slots=buffer_size,
            rebatched_rows=rebatched_size,
            keeps_remainder=not source.drops_remainder,
            loads_early=early_preload,
            loads_indefinitely=load_indefinitely,
            start_method=get_start_method(allow_none=True),
            seed=torch.initial_seed(),
            parsers=_portable_parsers(),
        )
        self._accessor = accessor_reader.AccessorReader(
            source, settings, strategy, miss_sleep_time_in_ms * _SECONDS_PER_MILLISECOND
        )

    def __repr__(self) -> str:
        """Returns the type of the dataset and the size of the ring."""
        return f"<{type(self).__name__} {self._description}>"

    def terminate(self) -> None:
        """Stops the worker, as at exit and when this object is garbage-collected (exact)."""
        self._accessor.stop()

    def __iter__(self) -> Iterator[Any]:
        """Starts from the beginning of the data, and returns this object."""
        self._accessor.begin()
        return self

    def __next__(self) -> Any:
        """Returns the next element, which overwrites the one before.

        Raises:
            StopIteration: the data has ended.
            AssertionError: the worker ended, for example by an exception in the dataset.
        """
        return self._accessor.next()

    def __len__(self) -> int:
        """Returns the number of elements of one iteration.

        Raises:
            TypeError: the dataset has no length.
        """
        return self._num_elements()


def _strategy_of(value: SharingStrategy | str) -> SharingStrategy:
    """Returns the strategy that `value` is or names.

    Raises:
        AssertionError: `value` is no strategy and no name of one.
    """
    names = SharingStrategy.__members__
    require(
        isinstance(value, SharingStrategy) or (isinstance(value, str) and value in names),
        "sharing_strategy must be a poptorch.SharingStrategy or the name of one of "
        f"{', '.join(names)}, not {value!r}.",
    )
    return names[value] if isinstance(value, str) else value


def _whole(name: str, value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}.") from None


def _portable_parsers() -> dict[type, ICustomArgParser]:
    """Returns the parsers that can be pickled; the worker does not know the other types."""
    parsers = {}
    for data_type, parser in registered_parsers().items():
        try:
            pickle.dumps((data_type, parser))
        except Exception:
            continue
        parsers[data_type] = parser
    return parsers
