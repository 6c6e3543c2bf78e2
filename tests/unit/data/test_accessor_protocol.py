"""Accessor and worker: no slot is lost, and no record of an old epoch is used."""

import signal
import threading
import time

import pytest
import torch

from poptorch_emu.data import accessor_reader
from poptorch_emu.data.data_accessor import AsynchronousDataAccessor
from poptorch_emu.data.element import cut_rows, template_of, tensors_of
from poptorch_emu.data.ring import Ring, RingFile, RingLayout, TensorSpec
from poptorch_emu.enums import SharingStrategy

LIMIT_SECONDS = 10


@pytest.fixture(autouse=True)
def time_limit():
    """Turns a deadlock, the effect of a lost slot, into a failure."""

    def fail(number, frame):
        raise TimeoutError(f"Nothing happened for {LIMIT_SECONDS} s.")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(LIMIT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def make():
    made = []

    def make_accessor(dataset, **arguments):
        made.append(
            AsynchronousDataAccessor(dataset, sharing_strategy=SharingStrategy.Fork, **arguments)
        )
        return made[-1]

    yield make_accessor
    for accessor in made:
        accessor.terminate()


def numbers(count):
    return [torch.tensor([value]) for value in range(count)]


def values(accessor):
    return [int(element) for element in accessor]


def let_worker_fill_the_ring():
    time.sleep(0.02)


@pytest.mark.parametrize("count", [2, 3, 9], ids=lambda count: f"{count}_elements")
def test_restart_with_a_full_ring_then_every_slot_comes_back(make, count):
    accessor = make(numbers(count), buffer_size=3)
    for _ in range(8):
        assert int(next(iter(accessor))) == 0
        let_worker_fill_the_ring()
    assert values(accessor) == list(range(count))


def test_restart_of_a_rebatched_epoch_then_half_filled_slots_begin_anew(make):
    accessor = make(numbers(7), buffer_size=2, rebatched_size=3)
    for _ in range(4):
        assert next(iter(accessor)).flatten().tolist() == [0, 1, 2]
        let_worker_fill_the_ring()
    assert [batch.flatten().tolist() for batch in accessor] == [[0, 1, 2], [3, 4, 5]]


class Once:
    """Data that can be iterated only once, and counts the attempts."""

    def __init__(self, count, log):
        self.iterator = iter(numbers(count))
        self.log = log

    def __iter__(self):
        with self.log.open("a") as log:
            log.write("x")
        return self.iterator


def test_data_that_is_exhausted_then_later_epochs_are_empty_and_not_loaded_for_ever(make, tmp_path):
    log = tmp_path / "log"
    accessor = make(Once(4, log))
    assert [values(accessor) for _ in range(3)] == [[0, 1, 2, 3], [], []]
    time.sleep(0.1)
    assert len(log.read_text()) <= 4


BAD_ELEMENTS = {
    "key_more": ([{"a": 0}, {"a": 0, "b": 0}], r"\['a', 'b'\].*\['a'\]"),
    "key_less": ([{"a": 0, "b": 0}, {"a": 0}], r"\['a'\].*\['a', 'b'\]"),
    "tensor_less": ([[0, 0], [0]], "1 tensors.* 2"),
    "shape": ([[[1.0]], [[1.0, 2.0]]], r"float32\[2\].*float32\[1\]"),
}


def with_tensors(element):
    if isinstance(element, dict):
        return {key: torch.tensor(value) for key, value in element.items()}
    return [torch.tensor(value) for value in element]


@pytest.mark.parametrize(("elements", "message"), BAD_ELEMENTS.values(), ids=BAD_ELEMENTS)
def test_element_unlike_the_first_then_the_error_says_both(make, elements, message):
    accessor = make(list(map(with_tensors, elements)))
    with pytest.raises(AssertionError, match=f"An error occurred in the data fetcher.*{message}"):
        list(accessor)


def test_rows_that_differ_within_an_element_then_the_error_says_them(make):
    accessor = make([[torch.zeros(2), torch.zeros(3)]], rebatched_size=4)
    with pytest.raises(AssertionError, match=r"float32\[2\], float32\[3\].*same size\(0\)"):
        list(accessor)


@pytest.mark.parametrize("use", [iter, next], ids=["iter", "next"])
def test_use_after_terminate_then_raises(make, use):
    accessor = make(numbers(3))
    iter(accessor)
    accessor.terminate()
    with pytest.raises(Exception, match="was terminated") as caught:
        use(accessor)
    assert type(caught.value).__name__ == "Error"


def slow_after_the_first():
    yield torch.zeros(1)
    time.sleep(1)
    yield torch.ones(1)


def test_terminate_in_another_thread_while_this_one_waits_then_raises_at_once(make):
    accessor = make(slow_after_the_first())
    next(accessor)
    thread = threading.Timer(0.1, accessor.terminate)
    thread.start()
    with pytest.raises(Exception, match="was terminated"):
        next(accessor)
    thread.join()


def test_length_where_nobody_knows_then_a_list_is_made_all_the_same(make):
    accessor = make(numbers(5), rebatched_size=2)
    with pytest.raises(TypeError, match="has no batch_size"):
        len(accessor)
    assert len(list(accessor)) == 2
    with pytest.raises(TypeError, match="has no len"):
        len(make(map(torch.tensor, [[1], [2]])))


@pytest.mark.parametrize("size", [0, -1])
def test_ring_without_slots_then_raises(size):
    with pytest.raises(ValueError, match=f"buffer_size must be at least 1, not {size}"):
        AsynchronousDataAccessor(numbers(2), buffer_size=size)


class Stuck:
    """A dataset that blocks after the first element, and ignores the given signals."""

    def __init__(self, *ignored):
        self.ignored = ignored

    def __iter__(self):
        for number in self.ignored:
            signal.signal(number, signal.SIG_IGN)
        yield torch.zeros(1)
        time.sleep(60)


@pytest.mark.parametrize(
    "ignored", [(), (signal.SIGINT,)], ids=["ends_by_SIGINT", "ends_by_SIGTERM"]
)
def test_terminate_while_the_dataset_is_stuck_then_signals_end_it(make, ignored, monkeypatch):
    monkeypatch.setattr(accessor_reader, "_GRACE_SECONDS", 0.2)
    accessor = make(Stuck(*ignored))
    next(iter(accessor))
    worker = accessor._accessor._process
    accessor.terminate()
    with pytest.raises(ValueError, match="closed"):  # Only a process that has ended can be closed.
        worker.is_alive()


class Slow:
    """A slow dataset, so that the reader waits for each element."""

    def __iter__(self):
        for _ in range(2):
            time.sleep(0.1)
            yield torch.zeros(1)


def test_miss_then_waits_at_least_as_long_as_asked(make):
    accessor = make(Slow(), miss_sleep_time_in_ms=200)
    iter(accessor)
    start = time.monotonic()
    next(accessor)
    next(accessor)  # The first element may be ready; then the second is not.
    assert 0.2 <= time.monotonic() - start < 2


def rows_of(pieces):
    return [(piece.tensors[0].tolist(), piece.first_row, piece.num_rows) for piece in pieces]


def test_cut_rows_then_pieces_meet_the_slots():
    elements = [
        [torch.arange(0, 5)],
        [torch.arange(5, 6)],
        [torch.arange(6, 6)],
        [torch.arange(6, 9)],
    ]
    assert rows_of(cut_rows(elements, 4)) == [
        ([0, 1, 2, 3], 0, 4),
        ([4], 0, 1),
        ([5], 1, 1),
        ([6, 7], 2, 2),
        ([8], 0, 1),
    ]


def test_template_then_holds_no_data():
    for element in ({"a": torch.ones(1000)}, [torch.ones(1000)], torch.ones(1000)):
        template = template_of(element)
        assert type(template) is type(element)
        assert [tensor.numel() for tensor in tensors_of(template)] == [0]


def test_rings_on_one_file_then_share_every_slot_and_no_byte():
    specs = (
        TensorSpec((3,), torch.float32),
        TensorSpec((), torch.bool),
        TensorSpec((0, 2), torch.int8),
    )
    layout = RingLayout(2, specs, 3)
    file = RingFile()
    file.allocate(layout)
    ours, theirs = Ring(layout, file), Ring(layout, file)
    file.close()
    written = []
    for count in range(2):
        for tensor in ours.slot(count):
            tensor.fill_(len(written) % 2)
            written.append(tensor.clone())
    seen = [tensor for count in range(2) for tensor in theirs.slot(count)]
    for tensor, expected in zip(seen, written, strict=True):
        assert torch.equal(tensor, expected)
    assert ours.slot(2) is ours.slot(0)
