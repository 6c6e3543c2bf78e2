"""The network's row of a schedule: what a valid program may exchange, and who waits for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from poptorch_emu import _C, Error

MICRO_BATCH, WINDOW = _C.SegmentKind.MICRO_BATCH, _C.SegmentKind.WINDOW


class Built:
    """A program that adds its input to a sum, exchanges it and reads it."""

    def __init__(self) -> None:
        program = self.program = _C.Program()
        program.add_input("x", True)
        self.sum = program.add_accumulator("w", torch.float32, False)
        self.forward = program.add_segment("forward", 0, MICRO_BATCH)
        program.load_input(self.forward, 0, 0)
        program.accumulate(self.forward, 0, self.sum)
        self.update = program.add_segment("update", 0, WINDOW)
        program.load_accumulator(self.update, 0, self.sum)
        self.exchange = program.add_segment("exchange", 1, WINDOW)
        self.rows = [[(self.forward, 0), (self.update, 0)], [(self.exchange, 0)]]

    def finish(self) -> _C.Program:
        self.program.set_schedule(self.rows, 1)
        self.program.validate()
        return self.program


def exchanged(built: Built, *, is_awaited: bool = True) -> None:
    built.program.exchange(built.exchange, built.sum)
    if is_awaited:
        built.program.add_link(built.exchange, [], built.update, [], 1)


def twice(built: Built) -> None:
    exchanged(built)
    built.program.exchange(built.exchange, built.sum)


def not_awaited(built: Built) -> None:
    exchanged(built, is_awaited=False)


def reduced_too(built: Built) -> None:
    exchanged(built)
    built.program.reduce(built.update, built.sum)


def of_a_shard(built: Built) -> None:
    exchanged(built)
    built.program.shard_accumulator(built.sum)


def waiting(built: Built) -> None:
    exchanged(built)
    other = built.program.add_segment("other", 0, WINDOW)
    built.program.add_link(other, [], built.exchange, [], 1)
    built.rows[0].append((other, 0))


def with_company(built: Built) -> None:
    exchanged(built)
    other = built.program.add_segment("other", 1, WINDOW)
    built.rows[1].append((other, 0))


def doing_more(built: Built) -> None:
    exchanged(built)
    built.program.load_rng(built.exchange, 0)


def test_network_when_the_reader_waits_then_the_program_is_valid() -> None:
    built = Built()
    exchanged(built)
    assert "exchange w" in built.finish().text()


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (twice, "'w' is added up over processes twice"),
        (not_awaited, "'update' reads accumulator 'w' and does not wait until 'exchange'"),
        (reduced_too, "'update' adds up 'w' over the replicas of this process"),
        (of_a_shard, "possible for a whole sum of all replicas only"),
        (waiting, "'exchange' exchanges sums and waits for a link"),
        (with_company, "'other' is on the network's row 1"),
        (doing_more, "window segment of one runner may do that does nothing else"),
    ],
)
def test_network_when_it_could_go_wrong_then_refused(
    spoil: Callable[[Built], None], text: str
) -> None:
    built = Built()
    spoil(built)
    with pytest.raises(Error, match=text):
        built.finish()


def test_network_without_other_processes_then_no_engine() -> None:
    built = Built()
    exchanged(built)
    with pytest.raises(Error, match="'w' over several processes, but it was given no others"):
        _C.Executor(built.finish(), 1, 1, 1, [0])
