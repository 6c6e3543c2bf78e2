"""The reader of an accessor sleeps about as long as the worker needs for an element."""

from types import SimpleNamespace

import pytest

from poptorch_emu.data import accessor_reader
from poptorch_emu.data.accessor_reader import AccessorReader, _sleeps_seconds

SHORTEST = 1e-4
NUM_SLOTS = 3


class Worker:
    """Creates an element every `element_seconds`, on a clock that only waits advance."""

    def __init__(self, element_seconds):
        self.element_seconds, self.now, self.begun_at = element_seconds, 0.0, 0.0
        self.num_waiting = self.num_taken = self.num_waits = 0
        self.sleeps = []

    @property
    def is_full(self):
        return self.num_waiting == NUM_SLOTS

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds
        while self.num_waiting < NUM_SLOTS and self.begun_at + self.element_seconds <= self.now:
            self.begun_at += self.element_seconds
            self.num_waiting += 1

    def take(self):
        if self.is_full:
            self.begun_at = self.now  # The worker stood still until now.
        self.num_waiting -= 1
        self.num_taken += 1

    def wait(self):
        self.num_waits += 1
        self.sleep(self.begun_at + self.element_seconds - self.now)


def read(monkeypatch, element_seconds, num_elements, shortest=SHORTEST):
    """Returns the worker, and the reader's sleeps for the second half of its elements."""
    worker = Worker(element_seconds)
    monkeypatch.setattr(accessor_reader.time, "sleep", worker.sleep)
    reader = SimpleNamespace(
        _progress=worker,
        _nap_seconds=shortest,
        _sleeps_seconds=_sleeps_seconds(shortest),
        _await_record=worker.wait,
    )
    reader._look = lambda: AccessorReader._look(reader)
    for index in range(num_elements):
        if index == num_elements // 2:
            worker.sleeps.clear()
        AccessorReader._next_record(reader)
    return worker, reader


@pytest.mark.parametrize("element_seconds", [0.00015, 0.0004, 0.0007])
def test_reader_when_elements_come_fast_then_hardly_sleeps_twice_for_one(
    monkeypatch, element_seconds
):
    worker, _ = read(monkeypatch, element_seconds, 400)
    assert worker.num_taken == 400
    assert len(worker.sleeps) < 1.2 * 200


@pytest.mark.parametrize("element_seconds", [0.00015, 0.0004, 0.0007])
def test_reader_when_elements_come_fast_then_the_worker_hardly_stands_still(
    monkeypatch, element_seconds
):
    worker, _ = read(monkeypatch, element_seconds, 400)
    assert worker.now < 1.03 * 400 * element_seconds + 0.01


def test_reader_when_elements_come_slowly_then_is_woken(monkeypatch):
    worker, reader = read(monkeypatch, 0.02, 20)
    assert worker.num_waits == 20
    assert reader._nap_seconds == SHORTEST


def test_reader_when_asked_to_sleep_longer_then_does(monkeypatch):
    worker, reader = read(monkeypatch, 0.004, 40, shortest=0.005)
    assert min(worker.sleeps) >= 0.005
    assert reader._nap_seconds == 0.005


def test_reader_when_asked_not_to_sleep_then_is_woken(monkeypatch):
    worker, _ = read(monkeypatch, 0.0004, 40, shortest=0.0)
    assert all(seconds in (0.0, pytest.approx(0.0004)) for seconds in worker.sleeps)
    assert worker.num_waits == 40
