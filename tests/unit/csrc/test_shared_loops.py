"""Loops whose parts also run on idle workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch_emu import _C

SECONDS = 60


@contextmanager
def helpers(loops: _C.SharedLoops, count: int) -> Iterator[None]:
    """Lets `count` threads help while the block runs."""
    is_over = threading.Event()

    def help_on() -> None:
        while not is_over.is_set():
            loops.help()

    threads = [threading.Thread(target=help_on) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_parts_when_there_are_helpers_then_each_takes_one() -> None:
    loops = _C.SharedLoops(lambda: None)
    all_at_once = threading.Barrier(3)
    with helpers(loops, 2):
        for _ in range(20):
            loops.run(3, 1, lambda begin, end: all_at_once.wait(SECONDS) and None)
    assert not all_at_once.broken


@given(st.integers(0, 100), st.integers(1, 40), st.integers(0, 2))
def test_parts_when_put_together_then_are_the_whole(
    count: int, per_part: int, num_helpers: int
) -> None:
    loops = _C.SharedLoops(lambda: None)
    parts: list[tuple[int, int]] = []
    with helpers(loops, num_helpers):
        loops.run(count, per_part, lambda begin, end: parts.append((begin, end)))
    places = sorted(place for begin, end in parts for place in range(begin, end))
    assert places == list(range(count))
    assert all(begin % per_part == 0 and end - begin <= per_part for begin, end in parts)


@pytest.mark.parametrize("num_helpers", [0, 2])
def test_loop_when_a_part_fails_then_throws_it_and_the_next_one_runs(num_helpers: int) -> None:
    loops = _C.SharedLoops(lambda: None)

    def fail(begin: int, end: int) -> None:
        raise ValueError(f"part {begin} failed")

    done: list[int] = []
    with helpers(loops, num_helpers):
        for _ in range(20):
            with pytest.raises(ValueError, match="part . failed"):
                loops.run(5, 1, fail)
        loops.run(5, 1, lambda begin, end: done.append(begin))
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_loop_when_within_a_part_of_another_then_is_run_there() -> None:
    loops = _C.SharedLoops(lambda: None)
    done: list[tuple[int, int]] = []

    def outer(begin: int, end: int) -> None:
        own = threading.get_ident()

        def inner(inner_begin: int, inner_end: int) -> None:
            assert threading.get_ident() == own
            done.extend((begin, place) for place in range(inner_begin, inner_end))

        loops.run(3, 1, inner)

    with helpers(loops, 2):
        for _ in range(200):
            loops.run(4, 1, outer)
    expected = [(part, place) for part in range(4) for place in range(3)]
    assert sorted(done) == sorted(expected * 200)


def test_sleepers_when_a_loop_is_short_then_are_not_woken() -> None:
    woken: list[int] = []
    loops = _C.SharedLoops(lambda: woken.append(1))
    loops.run(70, 10, lambda begin, end: None)
    assert not woken
    loops.run(80, 10, lambda begin, end: None)
    assert woken == [1]
    assert not loops.help()
