"""Every element arrives once, in order and whole, however accessor and worker are delayed.

Here a sleeping side checks again only after a minute, longer than a test may take. Only the other
side can wake it in time, so that a lost wake-up is detected.
"""

import os
import random
import signal
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poptorch_emu.data import accessor_reader, ring_progress
from poptorch_emu.data.accessor_link import new_links
from poptorch_emu.data.data_accessor import AsynchronousDataAccessor
from poptorch_emu.data.ring import Ring, RingFile, RingLayout, TensorSpec
from poptorch_emu.data.ring_progress import ReaderProgress, WorkerProgress, num_words
from poptorch_emu.enums import SharingStrategy

LIMIT_SECONDS = 30
# Delays in microseconds. Most are as short as the time between setting a flag and sleeping.
DELAYS = st.sampled_from([0, 0, 1, 3, 10, 30, 100, 1000])
few = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def time_limit(monkeypatch):
    def fail(number, frame):
        raise TimeoutError(f"Nothing happened for {LIMIT_SECONDS} s.")

    monkeypatch.setattr(ring_progress, "_LOOK_AGAIN_SECONDS", 60.0)
    monkeypatch.setattr(accessor_reader, "_LOOKING_SECONDS", 0.0)
    before = signal.signal(signal.SIGALRM, fail)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pause(generator, longest_microseconds):
    end = time.perf_counter() + generator.uniform(0, longest_microseconds) * 1e-6
    while time.perf_counter() < end:
        pass


def produce(ring, link, num_slots, num_elements, generator, delay):
    progress = WorkerProgress(ring.words, num_slots, link)
    for index in range(num_elements):
        if not progress.num_free:
            progress.wait(lambda: progress.num_free > 0)
        (slot,) = ring.slot(progress.num_filled)
        slot.fill_(index)
        pause(generator, delay)
        progress.publish(index // 7, index + 1)
    progress.publish_end(num_elements)


@few
@given(
    num_slots=st.integers(1, 4), worker_delay=DELAYS, reader_delay=DELAYS, seed=st.integers(0, 99)
)
def test_progress_of_two_processes_then_each_element_arrives_once(
    num_slots, worker_delay, reader_delay, seed
):
    num_elements = 150
    signal.alarm(LIMIT_SECONDS)
    layout = RingLayout(num_slots, (TensorSpec((50,), torch.int64),), num_words(num_slots))
    file = RingFile()
    file.allocate(layout)
    ring = Ring(layout, file)
    file.close()
    link, worker_link = new_links()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            link.close()
            produce(ring, worker_link, num_slots, num_elements, random.Random(seed), worker_delay)
            code = 0
        finally:
            os._exit(code)
    worker_link.close()
    progress, generator = ReaderProgress(ring.words, num_slots, link), random.Random(~seed)
    for index in range(num_elements):
        if not progress.num_waiting:
            progress.wait(lambda: progress.num_waiting > 0)
        record = progress.take()
        (slot,) = ring.slot(index)
        pause(generator, reader_delay)
        assert record == (index // 7, index + 1)
        assert not record.is_end
        assert (slot == index).all()
        progress.release()
    assert progress.num_waiting or progress.wait(lambda: progress.num_waiting > 0) is None
    assert progress.take().is_end
    assert os.waitpid(child, 0)[1] == 0
    link.close()


class Delayed:
    """Yields epoch * 1000 + i, each after a random time."""

    def __init__(self, num_elements, delay, seed):
        self.num_elements, self.delay, self.epoch = num_elements, delay, -1
        self.generator = random.Random(seed)

    def __iter__(self):
        self.epoch += 1
        for index in range(self.num_elements):
            pause(self.generator, self.delay)
            yield torch.full((20,), self.epoch * 1000 + index)


@few
@given(
    num_elements=st.integers(1, 9),
    num_slots=st.integers(1, 4),
    taken=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    worker_delay=DELAYS,
    reader_delay=DELAYS,
    ahead=st.booleans(),
    early=st.booleans(),
    seed=st.integers(0, 99),
)
def test_iterations_broken_off_then_each_begins_anew(
    num_elements, num_slots, taken, worker_delay, reader_delay, ahead, early, seed
):
    signal.alarm(LIMIT_SECONDS)
    accessor = AsynchronousDataAccessor(
        Delayed(num_elements, worker_delay, seed),
        buffer_size=num_slots,
        miss_sleep_time_in_ms=0,
        load_indefinitely=ahead,
        early_preload=early,
        sharing_strategy=SharingStrategy.Fork,
    )
    generator, last_epoch = random.Random(~seed), -1
    for count in taken:
        iterator, seen = iter(accessor), []
        for _ in range(count):
            element = next(iterator, None)
            if element is None:
                break
            pause(generator, reader_delay)
            assert (element == element[0]).all()
            seen.append(int(element[0]))
        epochs, indices = {value // 1000 for value in seen}, [value % 1000 for value in seen]
        assert indices == list(range(min(count, num_elements)))
        if seen:
            (epoch,) = epochs
            assert epoch > last_epoch
            last_epoch = epoch
    accessor.terminate()
