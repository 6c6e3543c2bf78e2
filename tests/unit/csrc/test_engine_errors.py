"""Messages when a program cannot continue; the next call can run."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor, one_segment
from test_executor import stash, training

from poptorch_emu import _C
from poptorch_emu.errors import Error

IN_EACH_ORDER = True

FLOAT = torch.float32


def lookup(num_micro_batches=3, *, is_counting=False):
    """Returns a program that looks rows 0 to 3 of a table up, on the second of two IPUs.

    The program fails for any other index. Optionally, variable 0 counts the completed micro-
    batches.
    """
    program = _C.Program()
    first = program.add_segment("feed", 0, MICRO_BATCH)
    second = program.add_segment("table", 1, MICRO_BATCH)
    program.load_input(first, 0, program.add_input("indices", True))
    program.add_link(first, [0], second, [0], 2)
    program.load_constant(second, 1, program.add_constant(10.0 * torch.arange(4.0)[:, None]))
    debug = _C.Debug("embedding_3", "Encoder", 2, "model.words", "net.py:12")
    add(program, second, "embedding", [Reg(1), Reg(0)], [2], debug=debug)
    program.store_output(second, 2, ALL, 1)
    if is_counting:
        count = program.add_variable("count", [1], FLOAT, True)
        program.load_variable(second, 3, count)
        add(program, second, "add.Tensor", [Reg(3), 1.0], [4])
        program.store_variable(second, 4, count)
    rows = [[(segment, m) for m in range(num_micro_batches)] for segment in (first, second)]
    program.set_schedule(rows, num_micro_batches)
    return program


def test_call_when_it_has_too_many_windows_to_count_then_refused():
    engine = executor(lookup())
    with pytest.raises(Error, match=f"A call of {2**62} windows has more micro-batches than can"):
        engine.run([torch.zeros(3, dtype=torch.int64)], 2**62)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [([2**50], f"no memory for its {2**52} bytes"), ([2**40, 2**40], "overflow")],
)
def test_executor_when_a_variable_needs_more_memory_than_there_is_then_error_says_so(shape, reason):
    program, _ = one_segment()
    program.add_variable("table", shape, FLOAT, False)
    with pytest.raises(
        Error, match=r"The host cannot hold variable 'table' of shape \[\d+"
    ) as told:
        executor(program)
    assert reason in told.value.message


def test_output_when_micro_batches_give_it_other_sizes_then_error_and_the_next_call_runs():
    program, segment = one_segment(num_micro_batches=2)
    add(program, segment, "nonzero", [Reg(0)], [1])
    program.store_output(segment, 1, ALL, 1)
    engine = executor(program)
    with pytest.raises(Error, match="An output has 3 numbers in one place and 1 in another"):
        engine.run([torch.tensor([0, 0, 1, 1, 1, 1])], 1)
    (found,) = engine.run([torch.tensor([0, 1, 0, 1, 0, 0])], 1)
    assert found.flatten().tolist() == [1, 0]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_instruction_that_fails_then_error_tells_where_and_why(workers):
    engine = executor(lookup(), replicas=2, workers=workers)
    with pytest.raises(Error) as caught:
        engine.run([torch.tensor([0, 1, 2, 3, 0, 99])], 1)
    text = caught.value.message
    for part in [
        "Exception while executing node 'embedding_3'",
        "aten::embedding(float32[4, 1], int64[1], -1, ",
        "block 'Encoder'",
        "stage 2",
        "segment 'table'",
        "micro-batch 2",
        "replica 1",
        "module 'model.words'",
        "at net.py:12",
        "index out of range",
    ]:
        assert part in text
    assert caught.value.type == "poptorch_cpp_error"
    assert "C++" not in text  # No stack of C++ frames.


def test_instruction_without_module_and_source_then_error_leaves_them_out():
    program, segment = one_segment(2)
    add(program, segment, "mm", [Reg(0), Reg(1)], [2])
    with pytest.raises(Error) as caught:
        executor(program).run([torch.ones(2, 3), torch.ones(2, 3)], 1)
    assert "aten::mm(float32[2, 3], float32[2, 3])" in caught.value.message
    assert "module" not in caught.value.message


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_run_after_an_error_then_results_are_right(workers):
    engine = executor(lookup(), replicas=2, workers=workers)
    for bad in range(6):
        indices = torch.tensor([0, 1, 2, 3, 0, 1])
        with pytest.raises(Error, match="index out of range"):
            engine.run([indices.index_fill(0, torch.tensor([bad]), 99)], 1)
        (result,) = engine.run([indices], 1)
        assert torch.equal(result, 10.0 * indices[:, None])


def failing_update(replicas=1):
    """Returns `training` with a second input; a micro-batch fails unless its value is 0 to 3."""
    program = training(2, replicas=replicas)
    indices = program.add_input("indices", True)
    program.load_input(0, 3, indices)
    program.load_constant(0, 4, program.add_constant(torch.ones(4, 1)))
    add(program, 0, "embedding", [Reg(4), Reg(3)], [5])
    return program


def test_run_after_an_error_then_accumulators_are_empty():
    engine = executor(failing_update(2), replicas=2)
    x = torch.tensor([1.0, 2.0, 4.0, 8.0])
    with pytest.raises(Error):
        engine.run([x, torch.tensor([0, 0, 0, 99])], 1)
    engine.set_scalar(0, -1.0)
    engine.run([x, torch.zeros(4, dtype=torch.int64)], 1)
    assert engine.read_variable(0, 0).item() == 15.0


def test_error_in_a_later_window_then_weights_are_those_of_the_last_complete_one():
    engine = executor(failing_update())
    engine.set_scalar(0, -1.0)
    with pytest.raises(Error):
        engine.run([torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([0, 0, 0, 99])], 2)
    assert engine.read_variable(0, 0).item() == 3.0


def test_error_in_a_later_window_then_random_numbers_of_the_complete_ones_are_not_used_again():
    program, segment = one_segment(num_micro_batches=2)
    program.load_rng(segment, 1)
    program.store_output(segment, 1, ALL, 1)
    program.load_constant(segment, 2, program.add_constant(torch.ones(4, 1)))
    add(program, segment, "embedding", [Reg(2), Reg(0)], [3])
    engine = executor(program)
    engine.set_rng_state(5, 100)
    with pytest.raises(Error):
        engine.run([torch.tensor([0, 0, 0, 0, 0, 99])], 3)
    assert engine.rng_state() == (5, 104)
    (states,) = engine.run([torch.zeros(2, dtype=torch.int64)], 1)
    assert states.reshape(2, 4)[:, 1].tolist() == [104, 105]


def test_error_in_a_window_then_variables_of_its_micro_batches_are_undone():
    engine = executor(lookup(is_counting=True))
    with pytest.raises(Error):
        engine.run([torch.tensor([0, 1, 99])], 1)
    assert engine.read_variable(0, 0).item() == 0.0


def test_schedule_that_needs_more_room_then_error_tells_where_each_ipu_stands():
    engine = executor(stash(1, "F0 F1 F2 B0 B1 B2"), replicas=2, workers=2, follows_lists=True)
    for _ in range(2):
        with pytest.raises(Error) as caught:
            engine.run([torch.ones(6)], 1)
        assert "The schedule cannot go on" in caught.value.message
        for replica in (0, 1):
            assert (
                f"Replica {replica}, IPU 0: waits to run 'forward' for micro-batch 1."
                in caught.value.message
            )


def test_schedule_that_consumes_before_it_produces_then_error():
    with pytest.raises(Error, match="waits to run 'backward' for micro-batch 0"):
        executor(stash(3, "B0 F0 F1 F2 B1 B2"), follows_lists=True).run([torch.ones(3)], 1)


@pytest.mark.parametrize(
    ("inputs", "windows", "text"),
    [
        ([], 1, "takes 1 inputs, but was given 0"),
        ([torch.ones(2), torch.ones(2)], 1, "takes 1 inputs, but was given 2"),
        ([torch.ones(6, 2)], 1, "Input x0 is float32[6, 2]"),
        ([torch.ones(6, 2)], 1, "multiple of 4"),
        ([torch.ones(12)], 2, "multiple of 8"),
    ],
    ids=["none", "too-many", "shape", "rows", "rows-of-windows"],
)
def test_run_when_inputs_do_not_fit_then_error_and_the_next_call_runs(inputs, windows, text):
    program, segment = one_segment(num_micro_batches=2)
    program.store_output(segment, 0, ALL, 1)
    engine = executor(program, replicas=2)
    with pytest.raises(Error) as caught:
        engine.run(inputs, windows)
    assert text in caught.value.message
    (result,) = engine.run([torch.arange(4.0)], 1)
    assert result.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert engine.rng_state() == (0, 2)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (torch.ones(2), "float32[2]"),
        (torch.ones(1, dtype=torch.int64), "int64[1]"),
        (torch.tensor(1.0), "float32[]"),
    ],
    ids=["shape", "dtype", "scalar"],
)
def test_write_variable_when_it_differs_then_error_shows_both(value, found):
    with pytest.raises(Error) as caught:
        executor(training(1)).write_variable(0, 0, value)
    assert f"'w' is given a tensor {found}" in caught.value.message
    assert "float32[1]" in caught.value.message


@pytest.mark.parametrize(
    ("replicas", "workers", "threads", "groups"),
    [(0, 1, 1, []), (1, 0, 1, [0]), (1, 1, 0, [0]), (2, 1, 1, [0]), (2, 1, 1, [0, -1])],
    ids=["no-replica", "no-worker", "no-thread", "groups-too-short", "negative-group"],
)
def test_executor_when_options_are_impossible_then_error(replicas, workers, threads, groups):
    with pytest.raises(Error, match="at least one replica and one worker") as caught:
        _C.Executor(training(1), replicas, workers, threads, groups)
    assert f"{threads} threads and the groups {groups}" in caught.value.message


def test_window_that_reads_an_empty_accumulator_then_error_names_it():
    program = _C.Program()
    update = program.add_segment("update", 0, WINDOW)
    program.load_accumulator(update, 0, program.add_accumulator("w.grad", FLOAT, False))
    program.set_schedule([[(update, 0)]], 1)
    with pytest.raises(Error, match="Accumulator 'w.grad' is empty"):
        executor(program).run([], 1)
