"""`AsynchronousDataAccessor` (api.md 15): refusals, failures, and the state after them."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.accessor_data import (
    FORK,
    DyingAt,
    FailingAt,
    Make,
    Numbers,
    children,
    shared_memory_of,
    values,
)

import poptorch_emu as poptorch
from poptorch_emu.data.data_accessor import AsynchronousDataAccessor

pytestmark = pytest.mark.feature("AsynchronousDataAccessor", fidelity="exact")

T = torch.tensor


# Tests of refused arguments, and of failures.


def loader_with(**arguments: Any) -> poptorch.DataLoader:
    return poptorch.DataLoader(poptorch.Options(), Numbers(5), batch_size=2, **arguments)


def test_accessor_when_loader_has_one_then_raises() -> None:
    loader = loader_with(
        mode=poptorch.DataLoaderMode.Async, async_options={"sharing_strategy": FORK}
    )
    with pytest.raises(poptorch.Error) as caught:
        AsynchronousDataAccessor(loader, sharing_strategy=FORK)
    loader.terminate()

    text = str(caught.value)
    assert "The DataLoader already uses an AsynchronousDataAccessor internally" in text
    assert "mode='poptorch.DataLoaderMode.Sync'" in text


def test_accessor_when_loader_keeps_the_remainder_then_asks_for_a_size(make: Make) -> None:
    loader = loader_with(drop_last=False)
    with pytest.raises(AssertionError) as caught:
        make(loader)
    assert "The 'drop_last=False' option from the DataLoader" in str(caught.value)
    assert "'rebatched_size'" in str(caught.value)

    assert len(list(make(loader, rebatched_size=2))) == 2 + (not loader.rebatched_drop_last)


@pytest.mark.parametrize("size", [-1, 0, 1])
def test_accessor_when_rebatched_size_is_too_small_then_raises(make: Make, size: int) -> None:
    with pytest.raises(AssertionError, match="rebatched_size must be None or greater than 1"):
        make(Numbers(4), rebatched_size=size)


BAD_ARGUMENTS = {
    "rows": ({"rebatched_size": 4.0}, TypeError, "rebatched_size must be a whole number, not 4.0"),
    "slots": ({"buffer_size": 2.5}, TypeError, "buffer_size must be a whole number, not 2.5"),
    "sleep": ({"miss_sleep_time_in_ms": -1}, ValueError, "miss_sleep_time_in_ms .* 0, not -1"),
    "no sleep": ({"miss_sleep_time_in_ms": float("nan")}, ValueError, "at least 0, not nan"),
}


@pytest.mark.parametrize(("argument", "kind", "text"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_accessor_when_a_number_makes_no_sense_then_raises_before_it_starts_a_worker(
    make: Make, argument: Any, kind: type[Exception], text: str
) -> None:
    before = children()
    with pytest.raises(kind, match=text):
        make(Numbers(4), **argument)
    assert children() == before


FAILED = "RuntimeError: out of numbers"
SET_UP_FAILURES = {
    "empty": ([], "The Dataset is empty"),
    "exception": (FailingAt(3, 0), FAILED),
    "death": (DyingAt(3, 0), ""),
    "number": ([[T(1), 5]], "Tensor at index 1 is not a torch tensor (<class 'int'>)"),
    "nested": ([[[T(1)], T(1)]], "flat 1D container of tensors"),
    "text": (["text"], "Tensor at index 0 is not a torch tensor (<class 'str'>)"),
}


@pytest.mark.parametrize(("dataset", "phrase"), SET_UP_FAILURES.values(), ids=SET_UP_FAILURES)
def test_accessor_when_first_element_fails_then_raises(
    make: Make, dataset: Any, phrase: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = children()
    with pytest.raises(poptorch.Error) as caught:
        make(dataset)

    expected = "AsynchronousDataAccessor worker thread failed to start (Check above for details)"
    assert expected in str(caught.value)
    assert str(caught.value).count(phrase or "ended without an error message") == 1
    captured = capfd.readouterr()
    assert captured.out.count(phrase or "ended without an error message") == 1
    assert captured.err == ""
    assert children() <= before


LATER_FAILURES = {
    "exception": (FailingAt(9, 4), FAILED),
    "death": (DyingAt(9, 4), ""),
    "another shape": ([T([1])] * 4 + [T([1, 2])], "Tensor at index 0 of an element is"),
    "more tensors": ([T([1])] * 4 + [[T([1]), T([1])]], "An element has 2 tensors"),
    "not a tensor": ([T([1])] * 4 + ["text"], "is not a torch tensor"),
    "a dict": ([T([1])] * 4 + [{"a": T([1])}], "is a dict, but the first one came as a Tensor"),
    "no dict": ([{"a": T([1])}] * 4 + [[T([1])]], "is a list, but the first one came as a dict"),
}


@pytest.mark.parametrize(("dataset", "phrase"), LATER_FAILURES.values(), ids=LATER_FAILURES)
def test_next_when_worker_fails_then_yields_what_was_loaded_and_raises(
    make: Make, dataset: Any, phrase: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = children()
    accessor = make(dataset)
    iterator = iter(accessor)
    for _ in range(4):
        next(iterator)

    for _ in range(2):
        with pytest.raises(AssertionError, match="An error occurred in the data fetcher") as error:
            next(iterator)
        text = str(error.value)
        assert text.count(phrase or "ended without an error message") == 1
        # The error shows frames of the dataset only, none of this package.
        assert ("Traceback (most recent call last)" in text) == (phrase == FAILED)
        assert "poptorch_emu/" not in text
    captured = capfd.readouterr()
    assert captured.out == text.removeprefix("An error occurred in the data fetcher: ") + "\n"
    assert captured.err == ""
    assert children() <= before


def test_accessor_when_the_dataset_cannot_be_pickled_then_error_names_another_strategy() -> None:
    before = children()
    with pytest.raises(poptorch.Error, match=r"cannot be sent .*SharingStrategy\.Fork"):
        poptorch.AsynchronousDataAccessor(map(lambda number: torch.ones(number), [1, 1]))
    assert children() <= before


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ({"mode": "Sync"}, "mode must be a poptorch.DataLoaderMode, not 'Sync'"),
        (
            {"mode": poptorch.DataLoaderMode.Async, "async_options": {"sharing_strategy": "fork"}},
            "sharing_strategy must be a poptorch.SharingStrategy or the name of one .*not 'fork'",
        ),
    ],
)
def test_loader_when_a_name_stands_for_a_member_then_refused(arguments, phrase: str) -> None:
    with pytest.raises(AssertionError, match=phrase):
        poptorch.DataLoader(poptorch.Options(), Numbers(4), drop_last=True, **arguments)


def test_next_when_worker_is_killed_then_raises_at_once(make: Make) -> None:
    before = children()
    accessor = make(Numbers(1000))
    next(iter(accessor))
    (worker,) = children() - before
    os.kill(worker, signal.SIGKILL)

    start = time.monotonic()
    with pytest.raises(AssertionError, match="An error occurred in the data fetcher"):
        values(accessor)
    assert time.monotonic() - start < 2


# Tests that accessors leave nothing behind.


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapped_rings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:poptorch_emu_ring")


def use_and_terminate(accessor: AsynchronousDataAccessor) -> None:
    values(accessor)
    accessor.terminate()
    accessor.terminate()


def use_and_drop(accessor: AsynchronousDataAccessor) -> None:
    next(iter(accessor))


def only_drop(accessor: AsynchronousDataAccessor) -> None:
    pass


@pytest.mark.parametrize(
    "use", [use_and_terminate, use_and_drop, only_drop], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("early", [True, False], ids=["early", "late"])
def test_accessor_when_gone_then_leaves_nothing(
    use: Callable[[AsynchronousDataAccessor], None], early: bool
) -> None:
    gc.collect()
    before = (children(), open_files(), mapped_rings(), shared_memory_of())

    for _ in range(3):
        use(AsynchronousDataAccessor(Numbers(30), early_preload=early, sharing_strategy=FORK))

    assert (children(), open_files(), mapped_rings(), shared_memory_of()) == before


def test_loader_when_dropped_then_its_worker_ends_without_collection() -> None:
    gc.collect()
    before = children()
    gc.disable()
    try:
        loader = loader_with(
            mode=poptorch.DataLoaderMode.Async, async_options={"sharing_strategy": FORK}
        )
        next(iter(loader))
        assert len(children() - before) == 1
        del loader
        assert children() == before
    finally:
        gc.enable()


def test_wait_when_dataset_is_slow_then_burns_no_core(make: Make) -> None:
    class Slow(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.1)
            return super().__getitem__(index)

    accessor = make(Slow(8), buffer_size=1)
    cpu_start, start = time.process_time(), time.monotonic()
    values(accessor)

    assert time.monotonic() - start > 0.5
    assert time.process_time() - cpu_start < 0.1


def test_worker_when_ring_is_full_then_burns_no_core(make: Make) -> None:
    before = children()
    make(Numbers(10**9), early_preload=True)
    (worker,) = children() - before
    time.sleep(0.1)

    def worker_cpu_ticks() -> int:
        fields = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    start = worker_cpu_ticks()
    time.sleep(0.3)
    assert worker_cpu_ticks() - start <= 2
