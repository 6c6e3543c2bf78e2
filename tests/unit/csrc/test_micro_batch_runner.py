"""Workers that take micro-batches through all segments: their times, order and bits."""

import threading

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor, take_events
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import path_in, set_freest_path

from poptorch_emu import _C
from poptorch_emu.errors import Error

N = 6


def two_stages(*, writes=0, num_micro_batches=N, is_sharded=False):
    """Returns a program of two IPUs: forward, loss on the second, backward, update.

    y = tanh(w x); the gradient is y * w. `writes` is how many of the segments store the variable
    `seen`.
    """
    program = _C.Program()
    weight = program.add_variable("weight", [3], torch.float32, False)
    seen = program.add_variable("seen", [3], torch.float32, True)
    forward = program.add_segment("forward", 0, MICRO_BATCH)
    loss = program.add_segment("loss", 1, MICRO_BATCH)
    backward = program.add_segment("backward", 0, MICRO_BATCH)
    update = program.add_segment("update", 0, WINDOW)
    program.load_input(forward, 0, program.add_input("x", True))
    for segment in (forward, backward):
        program.load_variable(segment, 1, weight)
    add(program, forward, "mul.Tensor", [Reg(0), Reg(1)], [2])
    add(program, loss, "tanh", [Reg(2)], [3])
    program.store_output(loss, 3, ALL, 1)
    add(program, backward, "mul.Tensor", [Reg(2), Reg(1)], [3])
    add(program, backward, "squeeze", [Reg(3)], [4])
    program.add_link(forward, [2], loss, [2], 2)
    back = program.add_link(loss, [3], backward, [2], 2)
    if is_sharded:
        program.shard_link(back)
    for segment in (forward, loss)[:writes]:
        program.load_variable(segment, 10, seen)
        add(program, segment, "mul.Tensor", [Reg(10), 0.5], [11])
        add(program, segment, "add.Tensor", [Reg(11), Reg(2)], [12])
        add(program, segment, "squeeze", [Reg(12)], [13])
        program.store_variable(segment, 13, seen)
    total = program.add_accumulator("weight", torch.float32, False)
    program.accumulate(backward, 4, total)
    program.load_accumulator(update, 0, total)
    program.load_variable(update, 1, weight)
    add(program, update, "sub.Tensor", [Reg(1), Reg(0)], [2])
    add(program, update, "squeeze", [Reg(2)], [3])
    program.store_variable(update, 3, weight)
    count = num_micro_batches
    order = [(s, m) for m in range(count) for s in (forward, backward)]
    program.set_schedule([[*order, (update, 0)], [(loss, m) for m in range(count)]], count)
    return program


def run(program, x, windows=3, **how):
    engine = executor(program, **how)
    engine.write_variable(0, 0, torch.tensor([0.3, -0.2, 0.9]))
    (out,) = engine.run([x], windows)
    return out, engine.read_variable(0, 0), engine.read_variable(1, 0)


@pytest.mark.parametrize(
    ("settings_", "is_independent"),
    [
        ({}, True),
        ({"writes": 1}, True),
        ({"writes": 2}, False),
        ({"num_micro_batches": 1}, False),
        ({"is_sharded": True}, False),
    ],
    ids=["plain", "one-writes", "two-write", "one-micro-batch", "sharded-link"],
)
def test_program_then_its_micro_batches_are_independent_or_not(settings_, is_independent):
    program = two_stages(**settings_)
    set_freest_path(program)
    count = settings_.get("num_micro_batches", N)
    assert program.num_independent_micro_batches() == (count if is_independent else 1)


def test_program_when_a_segment_is_seen_outside_then_keeps_the_order_of_the_lists():
    program = two_stages()
    program.set_seen_outside(1)
    set_freest_path(program)
    assert "seen outside" in program.text()
    for each in (program, _C.Program.deserialize(program.serialize())):
        assert each.num_independent_micro_batches() == 1


def test_program_when_links_make_a_circle_then_the_call_says_where_it_stands():
    program = two_stages()
    program.add_link(2, [3], 0, [5], 2)  # Forward waits for backward.
    engine = executor(program)
    assert program.num_independent_micro_batches() == 1
    with pytest.raises(Error, match="waits to run 'forward' for micro-batch 0"):
        engine.run([torch.randn(N, 3)], 1)


def test_program_without_segments_of_micro_batches_then_has_none_in_flight():
    program = _C.Program()
    weight = program.add_variable("weight", [2], torch.float32, False)
    update = program.add_segment("update", 0, WINDOW)
    program.load_variable(update, 0, weight)
    program.store_output(update, 0, ALL, 1)
    program.set_schedule([[(update, 0)]], 2)
    set_freest_path(program)
    assert program.num_independent_micro_batches() == 1
    (out,) = executor(program).run([], 3)
    assert out.shape == (6,)


FORWARD, LOSS, BACKWARD, UPDATE = range(4)
IN_ORDER = [(segment, _C.Turns.ONE_BY_ONE) for segment in (FORWARD, LOSS, BACKWARD)]


def test_path_when_written_and_read_then_is_the_same():
    program = two_stages(writes=1)
    set_freest_path(program)
    assert path_in(program) == [
        "path forward, one by one",
        "path loss, in any order",
        "path backward, in any order",
    ]
    assert path_in(_C.Program.deserialize(program.serialize())) == path_in(program)


@pytest.mark.parametrize(
    ("settings_", "path", "message"),
    [
        ({}, IN_ORDER[:2], "each of their segments and no other, but 'backward' is not in it"),
        ({}, [*IN_ORDER, (UPDATE, IN_ORDER[0][1])], "but 'update' is in it"),
        ({}, [*IN_ORDER, IN_ORDER[0]], "segment 0 of 4, which must exist and be named once"),
        ({}, IN_ORDER[::-1], "'loss' cannot be .* from 'forward' come later"),
        ({"is_sharded": True}, IN_ORDER, "'backward' cannot be .* from 'loss' come .* in parts"),
        ({"writes": 2}, IN_ORDER, "'loss' cannot be .* 'forward' writes its variable 'seen'"),
        (
            {"writes": 1},
            [(FORWARD, _C.Turns.IN_TURN), *IN_ORDER[1:]],
            "'forward' cannot be .* its stores need the order of the micro-batches",
        ),
    ],
)
def test_path_when_results_could_differ_then_is_refused(settings_, path, message):
    program = two_stages(**settings_)
    program.set_path(path)
    with pytest.raises(Error, match=message):
        program.validate()


@pytest.mark.parametrize("writes", [0, 1])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("replicas", [1, 2])
def test_micro_batches_in_flight_then_have_the_bits_of_the_lists(writes, workers, replicas):
    program = two_stages(writes=writes)
    if replicas > 1:
        program.set_runners(3, [0])
        reduce = program.add_segment("reduce", 0, WINDOW)
        program.set_runners(reduce, list(range(replicas)))
        program.reduce(reduce, 0)
        order = [(s, m) for m in range(N) for s in (0, 2)]
        program.set_schedule([[*order, (reduce, 0), (3, 0)], [(1, m) for m in range(N)]], N)
    x = torch.randn(5 * N * replicas, 3)
    expected = run(program, x, 5, replicas=replicas, follows_lists=True)
    found = run(program, x, 5, replicas=replicas, workers=workers)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_micro_batch_of_one_worker_then_passes_all_segments_before_the_next():
    engine = executor(two_stages())
    engine.set_tracing(True)
    engine.run([torch.randn(N, 3)], 1)
    events = take_events(engine)
    assert [(e.segment, e.micro_batch) for e in events] == [
        *((s, m) for m in range(N) for s in range(3)),
        (3, 0),
    ]
    assert engine.link_peaks() == [(0, 0)] * 2  # Nothing waits in a link.


@pytest.mark.parametrize("workers", [2, 4])
def test_segment_that_writes_then_runs_one_micro_batch_at_a_time(workers):
    engine = executor(two_stages(writes=1), workers=workers)
    engine.set_tracing(True)
    for _ in range(20):
        engine.run([torch.randn(10 * N, 3)], 10)
    events = [event for event in take_events(engine) if event.segment == 0]
    assert all(a.end_ns <= b.start_ns for a, b in zip(events, events[1:], strict=False))
    assert [event.micro_batch for event in events] == list(range(N)) * 200


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("wrong", range(N))
def test_call_when_a_micro_batch_fails_then_the_variables_are_those_of_before(workers, wrong):
    program = two_stages()
    # The last segment of a micro-batch fails after others have added to the sum.
    add(program, 2, "linalg_cholesky", [Reg(5)], [6])
    program.load_input(2, 5, program.add_input("matrix", True))
    engine = executor(program, workers=workers)
    engine.write_variable(0, 0, torch.tensor([0.3, -0.2, 0.9]))
    x, good = torch.randn(N, 3), torch.eye(2).repeat(N, 1)
    bad = good.clone()
    bad[2 * wrong : 2 * wrong + 2] *= -1
    engine.run([x, good], 1)
    before = engine.read_variable(0, 0)
    for _ in range(5):
        with pytest.raises(Exception, match=f"micro-batch {wrong}.*cholesky"):
            engine.run([x, bad], 1)
        assert torch.equal(engine.read_variable(0, 0), before)
    other = executor(program, workers=1, follows_lists=True)
    other.write_variable(0, 0, before)
    assert torch.equal(engine.run([x, good], 1)[0], other.run([x, good], 1)[0])
    assert torch.equal(engine.read_variable(0, 0), other.read_variable(0, 0))


@pytest.mark.parametrize("workers", [1, 3])
def test_stream_then_pauses_and_gives_the_rows_in_order(workers):
    engine = executor(two_stages(), workers=workers)
    engine.write_variable(0, 0, torch.tensor([0.3, -0.2, 0.9]))
    x = torch.randn(8 * N, 3)
    engine.begin_stream(max_unread=2, micro_batches_per_step=N, num_outputs=1)
    results = []
    thread = threading.Thread(target=lambda: results.append(engine.run([x], 8)[0]))
    thread.start()
    parts = []
    while part := engine.take_result():
        parts.append(part[0].clone())
    thread.join()
    engine.end_stream()
    assert torch.equal(torch.cat(parts), results[0])
    assert torch.equal(results[0], run(two_stages(), x, 8)[0])


@settings(max_examples=30)
@given(
    st.integers(2, 9), st.integers(1, 5), st.integers(0, 1), st.integers(1, 4), st.integers(0, 99)
)
def test_any_number_of_micro_batches_then_has_the_bits_of_the_lists(
    count, workers, writes, windows, seed
):
    program = two_stages(writes=writes, num_micro_batches=count)
    x = torch.randn(windows * count, 3, generator=torch.Generator().manual_seed(seed))
    expected = run(program, x, windows, follows_lists=True)
    found = run(program, x, windows, workers=workers)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
