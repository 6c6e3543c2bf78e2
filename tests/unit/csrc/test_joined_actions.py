"""Actions of several micro-batches, in programs built by hand; results stay separate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor, take_events
from test_output_modes import MODES, reference

from poptorch_emu import _C
from poptorch_emu.errors import Error

IN_EACH_ORDER = True

JOINED, RUNS, WINDOWS = 3, 2, 2
PER_WINDOW = JOINED * RUNS


def doubling(mode=ALL, period=1):
    """Returns a program that doubles joined micro-batches, and adds up its inputs."""
    program = _C.Program()
    segment = program.add_segment("only", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("x", True))
    add(program, segment, "mul.Tensor", [Reg(0), 2.0], [1])
    program.store_output(segment, 1, mode, period, num_pieces=JOINED)
    total = program.add_accumulator("total", torch.float32, False)
    add(program, segment, "sum", [Reg(0)], [2])
    program.accumulate(segment, 2, total)
    update = program.add_segment("update", 0, WINDOW)
    program.load_accumulator(update, 0, total)
    program.store_output(update, 0, ALL, 1)
    actions = [*((segment, run) for run in range(RUNS)), (update, 0)]
    program.set_schedule([actions], PER_WINDOW, joined=JOINED)
    return program, segment


@MODES
@pytest.mark.parametrize("groups", [[0], [0, 1], [0, 0], [0, 1, 1]], ids=str)
@pytest.mark.parametrize("workers", [1, 2])
def test_output_of_joined_micro_batches_then_is_gathered_by_its_mode(
    mode, period, groups, workers
) -> None:
    replicas, num_groups = len(groups), max(groups) + 1
    program, _ = doubling(mode, period)
    program.group_accumulator(0, list(range(replicas)))
    count = WINDOWS * PER_WINDOW
    rows = np.arange(count * num_groups * 2 * 2, dtype=np.float32).reshape(count, num_groups, 2, 2)
    engine = executor(program, replicas=replicas, workers=workers, groups=groups)
    result, totals = engine.run([torch.from_numpy(rows.reshape(-1, 2))], WINDOWS)
    np.testing.assert_array_equal(result.numpy(), reference(2 * rows[:, groups], mode, period))
    sums = rows[:, groups[0]].reshape(WINDOWS, -1).sum(axis=1)
    np.testing.assert_array_equal(totals.reshape(WINDOWS, -1)[:, 0].numpy(), sums)


def test_pieces_of_joined_micro_batches_then_are_outputs_in_their_order() -> None:
    program, segment = doubling()
    for piece in range(JOINED):
        add(program, segment, "slice.Tensor", [Reg(0), 0, piece, piece + 1], [10 + piece])
        add(program, segment, "sum", [Reg(10 + piece)], [4 + piece])
    output = program.store_output(segment, 4, ALL, 1)
    for piece in range(1, JOINED):
        program.store_piece(segment, 4 + piece, output, piece)
    x = torch.arange(float(WINDOWS * PER_WINDOW))
    assert torch.equal(executor(program).run([x], WINDOWS)[output], x)


def random_numbers(joined: int) -> torch.Tensor:
    """Returns the random numbers of twelve micro-batches, two for each."""
    program = _C.Program()
    segment = program.add_segment("only", 0, MICRO_BATCH)
    outputs = []
    for piece in range(joined):
        program.load_rng(segment, 2 * piece, piece)
        name, args = "poptorch_emu::uniform", [Reg(2 * piece), 5, [2], torch.float32, 0.0, 1.0]
        debug = _C.Debug("uniform")
        program.add_instruction(segment, name, "", args, {}, [2 * piece + 1], [], debug)
        if piece == 0:
            outputs.append(program.store_output(segment, 1, ALL, 1))
        else:
            program.store_piece(segment, 2 * piece + 1, outputs[0], piece)
    program.set_schedule([[(segment, run) for run in range(6 // joined)]], 6, joined=joined)
    engine = executor(program)
    engine.set_rng_state(7, 100)
    results = [engine.run([], 2)[0], engine.run([], 1)[0]]
    assert list(engine.rng_state()) == [7, 118]
    return torch.cat(results)


@pytest.mark.parametrize("joined", [2, 3, 6])
def test_random_numbers_when_joined_then_are_those_of_each_micro_batch(joined) -> None:
    assert torch.equal(random_numbers(joined), random_numbers(1))


@pytest.mark.parametrize("workers", [1, 2])
def test_events_and_transfers_when_joined_then_are_told_by_micro_batch(workers) -> None:
    program, _ = doubling()
    engine = executor(program, workers=workers)
    engine.set_tracing(True)
    engine.run([torch.ones(WINDOWS * PER_WINDOW)], WINDOWS)
    events = [event for event in take_events(engine) if event.segment == 0]
    assert sorted((event.window, event.micro_batch) for event in events) == [
        (window, m) for window in range(WINDOWS) for m in range(PER_WINDOW)
    ]
    assert all(event.start_ns <= event.end_ns for event in events)


@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("workers", [1, 2])
def test_stream_when_joined_then_hands_out_each_step(step, workers) -> None:
    program, _ = doubling()
    engine = executor(program, workers=workers)
    engine.begin_stream(100, step, 1)
    x = torch.arange(float(WINDOWS * PER_WINDOW))
    engine.run([x], WINDOWS)
    results = []
    while result := engine.take_result():
        results.append(result[0].reshape(-1))
    engine.end_stream()
    assert [len(each) for each in results] == [step] * (WINDOWS * PER_WINDOW // step)
    assert torch.equal(torch.cat(results), 2 * x)


def test_error_when_joined_then_names_all_its_micro_batches() -> None:
    program, segment = doubling()
    add(program, segment, "view", [Reg(0), [7]], [3])
    engine = executor(program)
    with pytest.raises(Error, match="micro-batches 0 to 2"):
        engine.run([torch.ones(WINDOWS * PER_WINDOW)], WINDOWS)


def test_program_when_stored_then_still_joins() -> None:
    program, _ = doubling()
    program.validate()
    copy = _C.Program.deserialize(program.serialize())
    assert copy.text() == program.text()
    assert "3 micro-batches at once" in copy.text()
    x = torch.arange(float(WINDOWS * PER_WINDOW))
    assert torch.equal(executor(copy).run([x], WINDOWS)[0], 2 * x)


def not_whole(program, segment):
    program.store_output(segment, 1, ALL, 1)


def too_many(program, segment):
    program.store_output(segment, 1, ALL, 1, num_pieces=JOINED + 1)


def twice(program, segment):
    output = program.store_output(segment, 1, ALL, 1)
    program.store_piece(segment, 1, output, 2)


def of_no_piece(program, segment):
    program.load_rng(segment, 9, JOINED)


def in_parts(program, segment):
    program.set_schedule([[(segment, 0), (1, 0)]], 4, joined=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (not_whole, "stored for 1 of the 3 micro-batches"),
        (too_many, "4 pieces from 0 on, of 3"),
        (twice, "stored twice"),
        (of_no_piece, "of piece 3 of 3"),
        (in_parts, "cannot join 3 micro-batches of a window of 4"),
    ],
)
def test_program_that_joins_wrongly_then_is_refused(change, message) -> None:
    program, segment = doubling()
    change(program, segment)
    with pytest.raises(Error, match=message):
        program.validate()
