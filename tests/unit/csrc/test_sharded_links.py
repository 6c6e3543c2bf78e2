"""Links whose values are sharded over the replicas: stored parts, received values, and waits."""

import itertools
import operator

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor

from poptorch_emu import _C
from poptorch_emu.errors import Error

N = 5


def positions(*, is_sharded, is_remote=False, capacity=1, layout=lambda value: value):
    """Forward sends a table, equal on all replicas, and x to backward, which adds them."""
    program = _C.Program()
    table = program.add_constant(torch.arange(14.0).view(2, 7))
    first = program.add_segment("first", 0, MICRO_BATCH)
    second = program.add_segment("second", 0, MICRO_BATCH)
    program.load_constant(first, 0, table)
    program.load_input(first, 1, program.add_input("x", True))
    add(program, first, "add.Tensor", [Reg(0), 1.0], [2])
    layout(program)(first, 2, 3)
    program.add_link(first, [1], second, [0], capacity)
    link = program.add_link(first, [3], second, [1], capacity) if is_sharded or is_remote else None
    if is_sharded:
        program.shard_link(link)
    if is_remote:
        program.set_remote_link(link)
    return program, second


def same(program):
    return lambda segment, source, target: add(
        program, segment, "mul.Tensor", [Reg(source), 1.0], [target]
    )


def transposed(program):
    return lambda segment, source, target: add(program, segment, "t", [Reg(source)], [target])


def spread(program):
    """Returns a view with overlapping elements: one row, repeated three times."""
    return lambda segment, source, target: add(
        program, segment, "expand", [Reg(source), [3, 2, 7]], [target]
    )


def ending(program, second, capacity):
    """Adds the operations of backward, and a schedule in which forward runs ahead by `capacity`."""
    add(program, second, "sum", [Reg(1)], [2])
    add(program, second, "add.Tensor", [Reg(0), Reg(2)], [3])
    program.store_output(second, 3, ALL, 1)
    program.store_output(second, 1, ALL, 1)
    forward, backward = [(0, m) for m in range(N)], [(1, m) for m in range(N)]
    order = forward[:capacity]
    for index in range(N):
        order += [backward[index], *forward[capacity + index : capacity + index + 1]]
    program.set_schedule([order], N)
    return program


EXPECTED = {
    same: torch.arange(1.0, 15.0).view(2, 7),
    transposed: torch.arange(1.0, 15.0).view(2, 7).t(),
    spread: torch.arange(1.0, 15.0).view(2, 7).expand(3, 2, 7),
}


@pytest.mark.parametrize(
    ("layout", "replicas", "workers", "capacity", "is_remote"),
    list(itertools.product(EXPECTED, [1, 2, 3, 4], [1, 2], [1, 3], [False, True])),
)
def test_sharded_link_when_run_then_each_replica_gets_the_whole_and_held_a_part(
    layout, replicas, workers, capacity, is_remote
):
    program, second = positions(
        is_sharded=True, is_remote=is_remote, capacity=capacity, layout=layout
    )
    engine = executor(ending(program, second, capacity), replicas=replicas, workers=workers)
    x = torch.randn(replicas * N)
    expected = EXPECTED[layout]
    for calls in range(1, 3):
        sums, tables = engine.run([x], 1)
        torch.testing.assert_close(sums, x + expected.sum())
        assert torch.equal(tables, torch.cat([expected] * (replicas * N)))
        part = -(-expected.numel() // replicas) * 4
        moved = calls * N * replicas * part if is_remote else 0
        assert engine.remote_stored_bytes() == engine.remote_loaded_bytes() == moved
        # With two workers, a backward may begin before the forward ahead of it has ended.
        items, peaks = zip(*engine.link_peaks(), strict=True)
        full = (capacity * 4, capacity * part)
        assert peaks == full if workers == 1 else all(map(operator.le, peaks, full))
        assert items == (capacity, capacity)


@pytest.mark.parametrize("wrong", range(2 * N))
def test_sharded_link_when_a_replica_fails_then_the_next_call_begins_anew(wrong):
    program, second = positions(is_sharded=True, capacity=2, layout=same)
    add(program, second, "embedding", [Reg(1), Reg(0)], [2])
    program.store_output(second, 2, ALL, 1)
    program.set_schedule([[(s, m) for m in range(N) for s in (0, 1)]], N)
    engine = executor(program, replicas=2, workers=2)
    rows = torch.arange(2 * N) % 2
    with pytest.raises(Error, match="index out of range"):
        engine.run([rows.index_fill(0, torch.tensor(wrong), 9)], 1)
    (found,) = engine.run([rows], 1)
    assert torch.equal(found, EXPECTED[same][rows])


def test_sharded_link_when_it_ends_in_a_window_then_refused():
    program = _C.Program()
    first = program.add_segment("first", 0, MICRO_BATCH)
    update = program.add_segment("update", 0, WINDOW)
    program.load_input(first, 0, program.add_input("x", True))
    program.shard_link(program.add_link(first, [0], update, [0], 1))
    program.set_schedule([[(first, 0), (update, 0)]], 1)
    with pytest.raises(Error, match="between micro-batches only"):
        program.validate()
