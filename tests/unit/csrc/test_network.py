"""The network's row of a schedule: valid exchanges, and the workers that wait for them."""

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
        self.update = program.add_segment("update", 0, WINDOW)
        self.exchange = program.add_segment("exchange", 1, WINDOW)
        self.rows = [[(self.forward, 0), (self.update, 0)], [(self.exchange, 0)]]

    def finish(self) -> _C.Program:
        self.program.set_schedule(self.rows, 1)
        self.program.validate()
        return self.program

    def wait(self, producer: int, consumer: int) -> None:
        self.program.add_link(producer, [], consumer, [], 1)


def exchanged(built: Built, *, is_awaited: bool = True) -> None:
    built.program.accumulate(built.forward, 0, built.sum)
    built.program.load_accumulator(built.update, 0, built.sum)
    built.program.exchange(built.exchange, built.sum)
    if is_awaited:
        built.wait(built.exchange, built.update)


def twice(built: Built) -> None:
    exchanged(built)
    built.program.exchange(built.exchange, built.sum)


def whole_and_in_parts(built: Built) -> None:
    exchanged(built)
    built.program.scatter(built.exchange, built.sum)


def not_awaited(built: Built) -> None:
    exchanged(built, is_awaited=False)


def reduced_too(built: Built) -> None:
    exchanged(built)
    built.program.reduce(built.update, built.sum)


def of_a_shard(built: Built) -> None:
    built.program.exchange(built.exchange, built.sum)
    built.program.shard_accumulator(built.sum)


def in_a_circle(built: Built) -> None:
    exchanged(built)
    other = built.program.add_segment("other", 0, WINDOW)
    built.wait(other, built.exchange)
    built.rows[0].append((other, 0))


def with_company(built: Built) -> None:
    exchanged(built)
    other = built.program.add_segment("other", 1, WINDOW)
    built.rows[1].append((other, 0))


def doing_more(built: Built) -> None:
    exchanged(built)
    built.program.load_rng(built.exchange, 0)


def on_two_rows(built: Built) -> None:
    exchanged(built)
    other = built.program.add_segment("elsewhere", 2, WINDOW)
    built.program.gather_variable(other, built.program.add_variable("v", [2], torch.float32, False))
    built.rows.append([(other, 0)])


def of_squares(built: Built, *, is_awaited: bool = True) -> None:
    """Adds an exchange of sums that the window itself computes first."""
    ended = built.program.add_segment("ended", 0, WINDOW)
    built.rows[0].insert(1, (ended, 0))
    squares = built.program.add_segment("squares", 0, WINDOW)
    built.rows[0].insert(1, (squares, 0))
    built.program.load_constant(squares, 0, built.program.add_constant(torch.ones(2)))
    built.program.accumulate(squares, 0, built.sum)
    built.program.exchange(built.exchange, built.sum)
    built.program.load_accumulator(built.update, 0, built.sum)
    built.wait(ended if is_awaited else squares, built.exchange)
    built.wait(built.exchange, built.update)


def of_squares_too_early(built: Built) -> None:
    of_squares(built, is_awaited=False)


def in_parts(built: Built) -> None:
    built.program.accumulate(built.forward, 0, built.sum)
    built.program.scatter(built.exchange, built.sum)
    built.program.load_accumulator_shard(built.update, 0, built.sum)
    built.wait(built.exchange, built.update)


def in_parts_and_read_whole(built: Built) -> None:
    in_parts(built)
    built.program.load_accumulator(built.update, 1, built.sum)


def gathered(built: Built, *, is_awaited: bool = True) -> None:
    """Adds an update that assigns a part of a variable, and a gather of all parts."""
    variable = built.program.add_variable("v", [2], torch.float32, False)
    in_parts(built)
    built.program.store_variable_shard(built.update, 0, variable)
    ended = built.program.add_segment("ended", 0, WINDOW)
    gather = built.program.add_segment("gather", 1, WINDOW)
    built.program.gather_variable(gather, variable)
    built.wait(ended if is_awaited else built.update, gather)
    built.rows[0].append((ended, 0))
    built.rows[1].append((gather, 0))


def gathered_too_early(built: Built) -> None:
    gathered(built, is_awaited=False)


def gathered_twice(built: Built) -> None:
    gathered(built)
    (gather, _) = built.rows[1][-1]
    built.program.gather_variable(gather, 0)


def each_micro_batch(built: Built) -> None:
    """Lets the network's row add to a sharded sum in each micro-batch, and gather the sum."""
    built.program.shard_accumulator(built.sum)
    adding = built.program.add_segment("adding", 1, MICRO_BATCH)
    built.program.add_link(built.forward, [0], adding, [0], 1)
    built.program.accumulate(adding, 0, built.sum)
    built.rows[1].insert(0, (adding, 0))
    built.program.gather_accumulator(built.exchange, built.sum)
    built.program.load_accumulator(built.update, 0, built.sum)
    built.wait(built.exchange, built.update)


def each_micro_batch_elsewhere(built: Built) -> None:
    built.program.accumulate(built.forward, 0, built.sum)
    built.program.shard_accumulator(built.sum)
    built.program.gather_accumulator(built.exchange, built.sum)


def each_micro_batch_and_not_put_together(built: Built) -> None:
    each_micro_batch(built)
    other = built.program.add_accumulator("other", torch.float32, False)
    built.program.shard_accumulator(other)
    built.program.load_accumulator(built.update, 1, other)


def whole_put_together(built: Built) -> None:
    built.program.gather_accumulator(built.exchange, built.sum)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (exchanged, "  exchange w"),
        (of_squares, "  exchange w"),
        (in_parts, "  exchange parts of w"),
        (gathered, "  gather v"),
        (each_micro_batch, "  gather accumulator w"),
    ],
)
def test_network_when_the_readers_wait_then_the_program_is_valid(
    build: Callable[[Built], None], text: str
) -> None:
    built = Built()
    build(built)
    program = built.finish()
    assert text in program.text()
    assert _C.Program.deserialize(program.serialize()).text() == program.text()


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (twice, "'w' is added up over processes twice"),
        (whole_and_in_parts, "'w' is added up over processes twice"),
        (not_awaited, "'update' reads accumulator 'w' and does not wait until 'exchange'"),
        (reduced_too, "'update' adds up 'w' over the replicas of this process"),
        (of_a_shard, "possible for a whole sum of all replicas only"),
        (in_a_circle, "'(update|exchange)' waits for a link that nobody fills before"),
        (with_company, "'other' is on the network's row 1"),
        (doing_more, "window segment of one runner may do that does nothing else"),
        (on_two_rows, "'elsewhere' exchanges tensors on row 2, but others do on row 1"),
        (of_squares_too_early, "does not wait until all replicas are through with 'squares'"),
        (in_parts_and_read_whole, "'update' reads the whole of accumulator 'w'"),
        (gathered_too_early, "'gather' gathers 'v' .* all replicas are through with 'update'"),
        (gathered_twice, "'v' is gathered from all processes twice"),
        (each_micro_batch_elsewhere, "'forward' adds to 'w', of which other processes have parts"),
        (each_micro_batch_and_not_put_together, "'update' reads the whole of accumulator 'other'"),
        (whole_put_together, "'exchange' gathers 'w', which is possible for a sharded sum"),
    ],
)
def test_network_when_it_could_go_wrong_then_refused(
    spoil: Callable[[Built], None], text: str
) -> None:
    built = Built()
    spoil(built)
    with pytest.raises(Error, match=text):
        built.finish()


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (exchanged, "'w' over several processes, but it was given no others"),
        (in_parts, "'w' over several processes, but it was given no others"),
        (gathered, "(adds up 'w' over|gathers 'v' from) several processes, but it was given no"),
    ],
)
def test_network_without_other_processes_then_no_engine(
    build: Callable[[Built], None], text: str
) -> None:
    built = Built()
    build(built)
    with pytest.raises(Error, match=text):
        _C.Executor(built.finish(), 1, 1, 1, [0])
