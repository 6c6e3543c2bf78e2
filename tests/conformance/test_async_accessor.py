"""`AsynchronousDataAccessor`: what it yields, how it fails, and that it leaves nothing behind.

Source: PopTorch reference, AsynchronousDataAccessor.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import poptorch_emu as poptorch
from poptorch_emu.data_accessor import AsynchronousDataAccessor

pytestmark = pytest.mark.feature("DataLoader", fidelity="exact")

FORK = poptorch.SharingStrategy.Fork


class Numbers(Dataset):  # type: ignore[type-arg]
    """Element i is tensor([i])."""

    def __init__(self, num_elements: int) -> None:
        self.num_elements = num_elements

    def __len__(self) -> int:
        return self.num_elements

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.num_elements:
            raise IndexError(index)
        return torch.tensor([index])


class FailingAt(Numbers):
    """Raises at one index."""

    def __init__(self, num_elements: int, index: int) -> None:
        super().__init__(num_elements)
        self.index = index

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.index:
            raise RuntimeError("out of numbers")
        return super().__getitem__(index)


class DyingAt(FailingAt):
    """Ends its process at one index without a word."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.index:
            os._exit(3)
        return Numbers.__getitem__(self, index)


class Logged(IterableDataset):  # type: ignore[type-arg]
    """Yields `epoch * 100 + i`; notes each element in a file, so that loading ahead is seen."""

    def __init__(self, file: Path, num_elements: int) -> None:
        self.file, self.num_elements, self.epoch = file, num_elements, -1

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.epoch += 1
        for index in range(self.num_elements):
            with self.file.open("a") as log:
                log.write("x")
            yield torch.tensor([self.epoch * 100 + index])


class Point:
    """Holds tensors where only a parser finds them."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, name: str) -> None:
        self.x, self.y, self.name = x, y, name


class PointParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Point) -> Iterator[torch.Tensor]:
        yield struct.x
        yield struct.y

    def reconstruct(self, original_structure: Point, tensor_iterator: Iterator[Any]) -> Point:
        return Point(next(tensor_iterator), next(tensor_iterator), original_structure.name)


class Points(Numbers):
    def __getitem__(self, index: int) -> Any:
        x = super().__getitem__(index)
        return Point(x, x * 10, "p")


Make = Callable[..., AsynchronousDataAccessor]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes accessors and terminates them at the end of the test."""
    made = []

    def make_accessor(dataset: Any, **arguments: Any) -> AsynchronousDataAccessor:
        arguments.setdefault("sharing_strategy", FORK)
        made.append(AsynchronousDataAccessor(dataset, **arguments))
        return made[-1]

    yield make_accessor
    for accessor in made:
        accessor.terminate()


def values(accessor: Any) -> list[Any]:
    return [element.tolist() for element in accessor]


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def wait_until(is_true: Callable[[], bool], limit_seconds: float = 10.0) -> bool:
    end = time.monotonic() + limit_seconds
    while not is_true() and time.monotonic() < end:
        time.sleep(0.01)
    return is_true()


@pytest.mark.parametrize("strategy", list(poptorch.SharingStrategy), ids=lambda s: s.name)
def test_elements_when_strategy_differs_then_are_the_same(
    make: Make, strategy: poptorch.SharingStrategy
) -> None:
    accessor = make(Numbers(7), sharing_strategy=strategy)

    assert values(accessor) == [[i] for i in range(7)]
    assert values(accessor) == [[i] for i in range(7)]
    assert len(accessor) == 7


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 10], ids="{} slots".format)
@pytest.mark.parametrize("num_elements", [1, 3, 8], ids="{} elements".format)
@pytest.mark.parametrize("loads_indefinitely", [True, False], ids=["ahead", "on demand"])
def test_elements_when_ring_is_small_or_large_then_none_is_lost(
    make: Make, buffer_size: int, num_elements: int, loads_indefinitely: bool
) -> None:
    accessor = make(
        Numbers(num_elements), buffer_size=buffer_size, load_indefinitely=loads_indefinitely
    )

    for _ in range(3):
        assert values(accessor) == [[i] for i in range(num_elements)]


T = torch.tensor
ELEMENTS = {
    "tensor": (T([1.5]), T([1.5])),
    "list": ([T(1), T([2.0])], [T(1), T([2.0])]),
    "tuple becomes list": ((T(1), T([2.0])), [T(1), T([2.0])]),
    "dict": ({"b": T(1), "a": T([2, 3])}, {"b": T(1), "a": T([2, 3])}),
    "empty tensor": ([torch.empty(0, 4), T(1)], [torch.empty(0, 4), T(1)]),
    "not contiguous": (torch.arange(6).view(2, 3).t(), T([[0, 3], [1, 4], [2, 5]])),
    **{
        str(dtype): (torch.ones(3).to(dtype), torch.ones(3).to(dtype))
        for dtype in (torch.bool, torch.int8, torch.float16, torch.bfloat16, torch.complex64)
    },
}


@pytest.mark.parametrize(("element", "expected"), ELEMENTS.values(), ids=ELEMENTS)
def test_element_when_kind_differs_then_comes_back(make: Make, element: Any, expected: Any) -> None:
    (actual,) = make([element])

    assert type(actual) is type(expected)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_dict_when_keys_change_their_order_then_tensors_go_to_their_keys(make: Make) -> None:
    seen = [dict(e) for e in make([{"a": T(1), "b": T(2)}, {"b": T(4), "a": T(3)}], buffer_size=2)]

    assert seen[1] == {"a": T(3), "b": T(4)}


@pytest.mark.parametrize(
    "strategy", [FORK, poptorch.SharingStrategy.ForkServer], ids=lambda s: s.name
)
def test_element_when_type_has_a_parser_then_comes_back(
    make: Make, strategy: poptorch.SharingStrategy
) -> None:
    poptorch.registerCustomArgParser(Point, PointParser())
    try:
        accessor = make(Points(3), sharing_strategy=strategy)
        seen = [(type(p), p.name, p.x.item(), p.y.item()) for p in accessor]
    finally:
        poptorch.registerCustomArgParser(Point, None)

    assert seen == [(Point, "p", i, 10 * i) for i in range(3)]


def test_element_when_next_is_called_then_is_overwritten(make: Make) -> None:
    accessor = make(Numbers(20), buffer_size=1)
    iterator = iter(accessor)
    first = next(iterator)
    kept = first.clone()

    for _ in range(5):
        second = next(iterator)

    assert first.data_ptr() == second.data_ptr()
    assert (kept.item(), first.item()) == (0, 5)


def test_element_when_it_is_held_then_stays(make: Make) -> None:
    accessor = make(Numbers(50), buffer_size=2)
    iterator = iter(accessor)
    for _ in range(3):
        held = next(iterator)
    time.sleep(0.05)  # Time for the worker to do wrong.

    assert held.item() == 2


def test_iter_when_part_way_then_restarts(make: Make) -> None:
    accessor = make(Numbers(9), buffer_size=3)
    for taken in (1, 5, 3):
        iterator = iter(accessor)
        assert [next(iterator).item() for _ in range(taken)] == list(range(taken))

    assert values(accessor) == [[i] for i in range(9)]


def test_iter_when_unused_then_does_nothing(make: Make, tmp_path: Path) -> None:
    accessor = make(Logged(tmp_path / "log", 4))

    for _ in range(3):
        assert iter(accessor) is accessor

    assert values(accessor) == [[0], [1], [2], [3]]  # Of epoch 0: none was thrown away.


def test_next_when_data_has_ended_then_ends_again_until_iter(make: Make) -> None:
    accessor = make(Numbers(2))
    assert len(values(accessor)) == 2
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(accessor)
    assert len(values(accessor)) == 2


PRELOADING = {
    # early_preload, loaded before iter() with 3 slots: the first always is.
    "late": (False, 1),
    "early": (True, 4),  # One more waits for a slot.
}


@pytest.mark.parametrize(("early", "expected"), PRELOADING.values(), ids=PRELOADING)
def test_preload_when_nobody_iterates_then_fills_the_ring_or_waits(
    make: Make, tmp_path: Path, early: bool, expected: int
) -> None:
    log = tmp_path / "log"
    make(Logged(log, 20), early_preload=early, buffer_size=3)

    assert wait_until(lambda: log.stat().st_size >= min(expected, 3))
    time.sleep(0.1)

    assert log.stat().st_size in {expected, max(1, expected - 1)}


@pytest.mark.parametrize("loads_indefinitely", [True, False], ids=["ahead", "on demand"])
def test_epoch_when_the_last_ended_then_is_loaded_at_once_or_on_demand(
    make: Make, tmp_path: Path, loads_indefinitely: bool
) -> None:
    log = tmp_path / "log"
    accessor = make(Logged(log, 4), load_indefinitely=loads_indefinitely, buffer_size=3)
    assert values(accessor) == [[0], [1], [2], [3]]

    if loads_indefinitely:
        assert wait_until(lambda: log.stat().st_size >= 7)
    else:
        time.sleep(0.1)
        assert log.stat().st_size == 4
    assert values(accessor) == [[100], [101], [102], [103]]


REBATCHED = {
    # sizes of the elements, rebatched_size.
    "joins": ([1] * 7, 3),
    "cuts": ([10, 10], 4),
    "joins and cuts": ([5, 1, 7, 2, 2, 9], 4),
    "fits": ([2, 2, 2], 2),
    "too few": ([1, 1], 5),
}


@pytest.mark.parametrize("keeps", [True, False], ids=["keep", "drop"])
@pytest.mark.parametrize(("sizes", "rebatched_size"), REBATCHED.values(), ids=REBATCHED)
def test_rebatching_when_sizes_differ_then_all_rows_come_in_order(
    make: Make, sizes: list[int], rebatched_size: int, keeps: bool
) -> None:
    class Elements(list):  # type: ignore[type-arg]
        rebatched_drop_last = not keeps

    rows = torch.arange(sum(sizes))
    elements = Elements((part, part.double()[:, None] / 2) for part in rows.split(sizes))
    expected = [
        part.tolist() for part in rows.split(rebatched_size) if keeps or len(part) == rebatched_size
    ]

    accessor = make(elements, rebatched_size=rebatched_size)

    assert accessor.rebatched_size == rebatched_size
    for _ in range(2):
        seen = []
        for whole, half in accessor:
            assert torch.equal(half[:, 0] * 2, whole.double())
            seen.append(whole.tolist())
        assert seen == expected


def test_length_when_rebatched_alone_then_counts_the_joined(make: Make) -> None:
    loader = poptorch.DataLoader(poptorch.Options(), Numbers(10), batch_size=2)

    assert len(make(loader, rebatched_size=4)) == 10 // 4
    assert len(make(loader)) == 5


def test_loader_when_given_to_an_accessor_then_is_iterated_by_it(make: Make) -> None:
    options = poptorch.Options()
    options.deviceIterations(2)
    loader = poptorch.DataLoader(options, Numbers(10), batch_size=2, num_workers=2)

    assert values(make(loader)) == [[[0], [1], [2], [3]], [[4], [5], [6], [7]]]


def test_shuffle_when_loader_is_asynchronous_then_seed_decides(make: Make) -> None:
    orders = []
    for _ in range(2):
        torch.manual_seed(3)
        loader = poptorch.DataLoader(
            poptorch.Options(),
            Numbers(30),
            shuffle=True,
            mode=poptorch.DataLoaderMode.Async,
            async_options={"sharing_strategy": FORK},
        )
        orders.append(values(loader) + values(loader))
        loader.terminate()

    assert orders[0] == orders[1]
    assert orders[0][:30] != orders[0][30:]


# What is refused, and what goes wrong.


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


SET_UP_FAILURES = {
    "empty": ([], "The Dataset is empty"),
    "exception": (FailingAt(3, 0), "out of numbers"),
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
    assert phrase in capfd.readouterr().err
    assert children() <= before


LATER_FAILURES = {
    "exception": (FailingAt(9, 4), "out of numbers"),
    "death": (DyingAt(9, 4), ""),
    "another shape": ([T([1])] * 4 + [T([1, 2])], ""),
    "another type": ([T([1])] * 4 + [T([1.0])], ""),
    "more tensors": ([T([1])] * 4 + [[T([1]), T([1])]], ""),
    "not a tensor": ([T([1])] * 4 + ["text"], "is not a torch tensor"),
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
        with pytest.raises(AssertionError, match="An error occurred in the data fetcher"):
            next(iterator)
    assert phrase in capfd.readouterr().err
    assert children() <= before


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


# Nothing is left behind.


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapped_rings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:poptorch_emu_ring")


def shared_memory_of(process: int | str = "self") -> set[str]:
    """Returns the files of /dev/shm that a process has mapped."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return {line.split("/dev/shm/")[1].split()[0] for line in lines if "/dev/shm/" in line}


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


SCRIPT = """
import sys, time
import torch
import poptorch_emu as poptorch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100000
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.tensor([index])

if __name__ == "__main__":
    loader = poptorch.DataLoader(
        poptorch.Options(), Slow(), num_workers=2, mode=poptorch.DataLoaderMode.Async,
        async_options={"sharing_strategy": poptorch.SharingStrategy[sys.argv[1]]})
    for index, element in enumerate(loader):
        if index == 5:
            print("ready", flush=True)
            if sys.argv[2] == "return":
                break
            if sys.argv[2] == "raise":
                raise RuntimeError("user's mistake")
"""

ENDS = {
    "return": (0, None),
    "raise": (1, None),
    "SIGINT to the group": (None, lambda process: os.killpg(process.pid, signal.SIGINT)),
    "SIGINT to the parent": (None, lambda process: process.send_signal(signal.SIGINT)),
    "SIGTERM": (-signal.SIGTERM, lambda process: process.terminate()),
    "SIGKILL": (-signal.SIGKILL, lambda process: process.kill()),
}
CASES = [("Fork", end) for end in ENDS]
CASES += [("ForkServer", "SIGINT to the group"), ("ForkServer", "SIGKILL")]


def processes_with(token: str) -> list[int]:
    """Returns the living processes whose environment has `token`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = token.encode() in (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if is_ours and state != "Z":
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize(("strategy", "end"), CASES, ids=[" ".join(case) for case in CASES])
def test_process_when_it_ends_then_no_other_lives_on(
    strategy: str, end: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    token = f"ACCESSOR_TEST={tmp_path}"
    shared: set[str] = set()
    expected_code, act = ENDS[end]
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(script), strategy, end],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ACCESSOR_TEST": str(tmp_path)},
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        if act is not None:
            others = processes_with(token)
            assert len(others) >= 2
            shared.update(*map(shared_memory_of, others))
            act(process)
        process.wait(timeout=15)
        errors = process.stderr.read()

    assert wait_until(lambda: not processes_with(token)), errors
    assert wait_until(lambda: not shared & set(os.listdir("/dev/shm")))
    assert process.returncode == expected_code or expected_code is None
    assert "leaked" not in errors
    if end == "return":
        assert errors == ""
