"""Links, pipelines, variables, accumulators and replicas of programs built by hand."""

import threading
import time

import pytest
import torch
from hand_built import (
    ALL,
    MICRO_BATCH,
    WINDOW,
    Reg,
    add,
    executor,
    one_segment,
    pipeline,
    take_events,
)

from poptorch_emu import _C

IN_EACH_ORDER = True

FLOAT = torch.float32


def stash(capacity, actions):
    """Returns a program that stashes x + 1 in forward; backward on the same IPU negates it."""
    program = _C.Program()
    forward = program.add_segment("forward", 0, MICRO_BATCH)
    backward = program.add_segment("backward", 0, MICRO_BATCH)
    program.load_input(forward, 0, program.add_input("x", True))
    add(program, forward, "add.Tensor", [Reg(0), 1.0], [1], dies=[0])
    program.add_link(forward, [1], backward, [0], capacity)
    add(program, backward, "neg", [Reg(0)], [1])
    program.store_output(backward, 1, ALL, 1)
    segments = {"F": forward, "B": backward}
    program.set_schedule([[(segments[kind], int(m)) for kind, m in actions.split()]], 3)
    return program


def training(per_window, *, divisor=1, dtype=FLOAT, is_running_mean=False, replicas=1):
    """Returns a program with loss w * x, whose window subtracts lr * (sum of x) / divisor from w.

    With several replicas each adds up its part of the gradient first. The only variable is w, the
    only scalar lr, the only output the losses of all micro-batches.
    """
    program = _C.Program()
    forward = program.add_segment("forward", 0, MICRO_BATCH)
    update = program.add_segment("update", 0, WINDOW)
    weight = program.add_variable("w", [1], FLOAT, False)
    gradient = program.add_accumulator("w.grad", dtype, is_running_mean)
    program.load_input(forward, 0, program.add_input("x", True))
    program.load_variable(forward, 1, weight)
    add(program, forward, "mul.Tensor", [Reg(0), Reg(1)], [2])
    program.store_output(forward, 2, ALL, 1)
    program.accumulate(forward, 0, gradient)
    program.load_accumulator(update, 0, gradient)
    program.load_variable(update, 1, weight)
    program.load_scalar(update, 2, program.add_scalar("lr", 0.1))
    add(program, update, "div.Tensor", [Reg(0), divisor], [3])
    add(program, update, "mul.Tensor", [Reg(3), Reg(2)], [4])
    add(program, update, "sub.Tensor", [Reg(1), Reg(4)], [5])
    program.store_variable(update, 5, weight)
    window = [(update, 0)]
    if replicas > 1:
        window.insert(0, (all_reduce(program, gradient, replicas), 0))
    program.set_schedule([[*((forward, m) for m in range(per_window)), *window]], per_window)
    return program


def all_reduce(program, gradient, replicas, *, ipu=0):
    """Adds a window segment, in which each replica adds up one part of a gradient."""
    segment = program.add_segment("reduce", ipu, WINDOW)
    program.set_runners(segment, range(replicas))
    program.reduce(segment, gradient)
    return segment


def gradient_seen(engine, x, windows=1):
    """Returns the gradient in the window segment of `training`, by updating w = 0 with lr = -1."""
    engine.write_variable(0, 0, torch.zeros(1))
    engine.set_scalar(0, -1.0)
    engine.run([x], windows)
    return engine.read_variable(0, 0).item()


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("capacity", [1, 2])
def test_pipeline_of_three_ipus_then_each_micro_batch_passes_all(workers, capacity):
    x = torch.arange(10.0).reshape(10, 1)
    engine = executor(pipeline(3, 5, capacity=capacity), workers=workers, follows_lists=True)
    for _ in range(3):
        (result,) = engine.run([x], 1)
        assert torch.equal(result, ((x * 2 + 0) * 2 + 1) * 2 + 2)
    assert all(1 <= items <= capacity for items, _ in engine.link_peaks())


@pytest.mark.parametrize(
    ("actions", "peak"),
    [("F0 B0 F1 B1 F2 B2", 1), ("F0 F1 B0 F2 B1 B2", 2), ("F0 F1 F2 B0 B1 B2", 3)],
    ids=["at-once", "one-ahead", "all-first"],
)
def test_stash_then_items_leave_in_the_order_they_came(actions, peak):
    engine = executor(stash(3, actions), follows_lists=True)
    x = torch.tensor([5.0, 7.0, 9.0])
    (result,) = engine.run([x], 1)
    assert result.tolist() == [-6.0, -8.0, -10.0]
    assert [items for items, _ in engine.link_peaks()] == [peak]


def test_link_with_several_tensors_then_they_arrive_in_their_registers():
    program = _C.Program()
    first = program.add_segment("first", 0, MICRO_BATCH)
    second = program.add_segment("second", 1, MICRO_BATCH)
    program.load_input(first, 0, program.add_input("x", True))
    add(program, first, "mul.Tensor", [Reg(0), 10.0], [1])
    program.add_link(first, [0, 1], second, [1, 0], 1)
    add(program, second, "sub.Tensor", [Reg(0), Reg(1)], [2])
    program.store_output(second, 2, ALL, 1)
    program.set_schedule([[(first, 0)], [(second, 0)]], 1)
    (result,) = executor(program).run([torch.tensor([1.0, 2.0])], 1)
    assert result.tolist() == [9.0, 18.0]


@pytest.mark.parametrize("workers", [1, 2])
def test_update_when_another_ipu_has_micro_batches_left_then_waits_for_them(workers):
    program = training(3)
    slow = program.add_segment("slow", 1, MICRO_BATCH)
    program.load_input(slow, 0, program.add_input("y", True))
    for register in range(20):
        add(program, slow, "exp", [Reg(register)], [register + 1])
    micro_batches = range(3)
    program.set_schedule(
        [[*((0, m) for m in micro_batches), (1, 0)], [(slow, m) for m in micro_batches]], 3
    )
    engine = executor(program, workers=workers)
    engine.set_tracing(True)
    engine.run([torch.ones(12), torch.zeros(12, 1000)], 4)
    events = take_events(engine)
    for window in range(4):
        begins = [e.start_ns for e in events if e.window == window and e.segment == 1]
        ends = [e.end_ns for e in events if e.window == window and e.segment != 1]
        assert len(ends) == 6 and begins[0] >= max(ends)


def test_variable_assigned_by_micro_batches_then_the_next_one_sees_it():
    program, segment = one_segment(num_micro_batches=2)
    total = program.add_variable("total", [1], FLOAT, True)
    program.load_variable(segment, 1, total)
    add(program, segment, "add.Tensor", [Reg(0), Reg(1)], [2])
    program.store_variable(segment, 2, total)
    program.store_output(segment, 2, ALL, 1)
    engine = executor(program, replicas=2, workers=2)
    engine.write_variable(total, 1, torch.tensor([100.0]))

    (sums,) = engine.run([torch.arange(8.0)], 2)  # Replica 0 reads 0 2 4 6, replica 1 1 3 5 7.

    assert sums.tolist() == [0.0, 101.0, 2.0, 104.0, 6.0, 109.0, 12.0, 116.0]
    engine.run([torch.ones(4)], 1)
    assert [engine.read_variable(total, r).item() for r in (0, 1)] == [14.0, 118.0]


def test_read_variable_then_it_is_a_copy():
    engine = executor(training(1))
    value = torch.ones(1)
    engine.write_variable(0, 0, value)
    value.zero_()
    engine.read_variable(0, 0).zero_()
    assert engine.read_variable(0, 0).item() == 1.0


def test_variable_when_written_with_a_conjugate_view_then_holds_its_numbers():
    program, _ = one_segment()
    program.add_variable("w", [2], torch.complex64, False)
    engine = executor(program)
    engine.write_variable(0, 0, torch.tensor([1 + 2j, 3 - 4j]).conj())
    assert engine.read_variable(0, 0).tolist() == [1 - 2j, 3 + 4j]


def test_variable_bytes_then_replicas_count_only_where_they_have_their_own():
    program, _ = one_segment()
    program.add_variable("shared", [4, 2], torch.float16, False)
    program.add_variable("own", [3], FLOAT, True)
    assert executor(program, replicas=3).variable_bytes() == 4 * 2 * 2 + 3 * (3 * 4)


def test_constant_then_it_can_be_loaded_by_every_micro_batch():
    program, segment = one_segment(num_micro_batches=2)
    program.load_constant(segment, 1, program.add_constant(torch.tensor([3.0])))
    add(program, segment, "add.Tensor", [Reg(0), Reg(1)], [2])
    program.store_output(segment, 2, ALL, 1)
    (result,) = executor(program).run([torch.tensor([1.0, 2.0])], 1)
    assert result.tolist() == [4.0, 5.0]


def test_input_that_is_not_batched_then_each_micro_batch_gets_all_of_it():
    program, segment = one_segment(num_micro_batches=2)
    program.load_input(segment, 1, program.add_input("whole", False))
    add(program, segment, "mul.Tensor", [Reg(0), Reg(1)], [2])
    program.store_output(segment, 2, ALL, 1)
    x, whole = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 100.0, 1000.0])
    (result,) = executor(program).run([x, whole], 1)
    assert torch.equal(result, torch.cat([whole, 2 * whole]))


@pytest.mark.parametrize(
    ("windows", "per_window", "weight", "losses"),
    [(1, 2, 0.75, [1, 2, 3, 4]), (2, 1, 0.5, [1, 2, 0.85 * 3, 0.85 * 4])],
    ids=["accumulated", "two-iterations"],
)
def test_training_with_two_replicas_then_worked_example(windows, per_window, weight, losses):
    engine = executor(
        training(per_window, divisor=2 * per_window, replicas=2), replicas=2, workers=2
    )
    engine.write_variable(0, 0, torch.ones(1))
    (result,) = engine.run([torch.tensor([1.0, 2.0, 3.0, 4.0])], windows)
    torch.testing.assert_close(result, torch.tensor(losses, dtype=FLOAT))
    torch.testing.assert_close(engine.read_variable(0, 0), torch.tensor([weight]))


def test_scalar_set_between_calls_then_the_next_call_uses_it():
    engine = executor(training(1))
    for rate, expected in [(0.1, -0.1), (0.5, -0.6), (0.5, -1.1)]:
        engine.set_scalar(0, rate)
        engine.run([torch.ones(1)], 1)
        assert engine.read_variable(0, 0).item() == pytest.approx(expected)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(
    ("of_replica", "expected"),
    [([1e8, 1.0, -1e8, 1.0], 0.0), ([1.0, 1e8, -1e8, 1.0], 2.0), ([1.0, 1.0, 1e8, -1e8], 1.0)],
    ids=["apart", "first", "last"],
)
def test_accumulator_of_replicas_then_added_in_the_order_of_a_ring_that_ends_with_the_owner(
    workers, of_replica, expected
):
    engine = executor(training(1, replicas=4), replicas=4, workers=workers)
    for _ in range(5):
        assert gradient_seen(engine, torch.tensor(of_replica)) == expected


def test_accumulator_with_micro_batches_and_replicas_then_micro_batches_are_added_first():
    engine = executor(training(2, replicas=2), replicas=2)
    # Replica 0 gets 1e8 and 1, which rounds to 1e8; replica 1 gets 1 and -1e8, which is -1e8.
    assert gradient_seen(engine, torch.tensor([1e8, 1.0, 1.0, -1e8])) == 0.0


def test_accumulator_of_an_input_then_input_is_unchanged():
    engine = executor(training(3))
    x = torch.tensor([1.0, 2.0, 3.0])
    assert gradient_seen(engine, x) == 6.0
    assert x.tolist() == [1.0, 2.0, 3.0]


def test_accumulator_that_is_a_running_mean_then_window_gets_the_mean():
    engine = executor(training(3, is_running_mean=True))
    assert gradient_seen(engine, torch.tensor([2.0, 4.0, 9.0])) == 5.0


def test_accumulator_of_float16_then_each_contribution_is_rounded():
    engine = executor(training(3, dtype=torch.float16))
    # 2048 + 1 has no float16; added in float32 the sum would be 2050.
    assert gradient_seen(engine, torch.tensor([2048.0, 1.0, 1.0])) == 2048.0


def test_accumulator_then_it_is_empty_at_the_start_of_each_window():
    engine = executor(training(1))
    assert gradient_seen(engine, torch.tensor([1.0, 2.0, 4.0]), windows=3) == 7.0


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([0, 0, 1, 1], [0, 0, 1, 1, 2, 2, 3, 3]),
        ([0, 1, 0, 1], [0, 1, 0, 1, 2, 3, 2, 3]),
        ([0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1]),
    ],
    ids=["consecutive", "orthogonal", "broadcast"],
)
def test_input_groups_then_replicas_of_a_group_read_the_same_rows(groups, expected):
    program, segment = one_segment(num_micro_batches=2)
    program.store_output(segment, 0, ALL, 1)
    rows = torch.arange(float(2 * (1 + max(groups))))
    (result,) = executor(program, replicas=4, groups=groups).run([rows], 1)
    assert result.tolist() == expected


def test_window_segments_that_are_linked_then_both_ipus_update():
    program = _C.Program()
    updates = [program.add_segment(f"update{ipu}", ipu, WINDOW) for ipu in (0, 1)]
    norms = [program.add_variable(f"v{ipu}", [1], FLOAT, False) for ipu in (0, 1)]
    program.load_constant(updates[0], 0, program.add_constant(torch.tensor([3.0])))
    program.store_variable(updates[0], 0, norms[0])
    program.add_link(updates[0], [0], updates[1], [0], 1)
    add(program, updates[1], "mul.Tensor", [Reg(0), 2.0], [1])
    program.store_variable(updates[1], 1, norms[1])
    program.set_schedule([[(updates[0], 0)], [(updates[1], 0)]], 1)
    engine = executor(program, replicas=2, workers=2)
    engine.run([], 2)
    assert [engine.read_variable(norm, 0).item() for norm in norms] == [3.0, 6.0]


def noisy_sums(replicas):
    """Returns a two-stage pipeline that accumulates values whose sum depends on the order."""
    program = pipeline(2, 4, capacity=2)
    update = program.add_segment("update", 1, WINDOW)
    gradient = program.add_accumulator("g", FLOAT, False)
    total = program.add_variable("total", [3], FLOAT, False)
    add(program, 1, "sum.dim_IntList", [Reg(2), [0]], [3])
    program.accumulate(1, 3, gradient)
    program.load_accumulator(update, 0, gradient)
    program.load_variable(update, 1, total)
    add(program, update, "add.Tensor", [Reg(0), Reg(1)], [2])
    program.store_variable(update, 2, total)
    stages = [[(stage, m) for m in range(4)] for stage in (0, 1)]
    reduction = all_reduce(program, gradient, replicas, ipu=1)
    program.set_schedule([stages[0], [*stages[1], (reduction, 0), (update, 0)]], 4)
    return program


def test_number_of_workers_then_results_have_the_same_bits():
    x = torch.randn(2 * 4 * 3 * 5, 3) * torch.logspace(-4, 4, 120)[:, None]
    results = []
    for workers in (1, 2, 4):
        engine = executor(noisy_sums(3), replicas=3, workers=workers)
        (output,) = engine.run([x], 2)
        results.append((output, engine.read_variable(0, 0)))
    for output, total in results[1:]:
        assert torch.equal(output, results[0][0])
        assert torch.equal(total, results[0][1])
    exact = (2 * (2 * x.double()) + 1).sum(0)
    torch.testing.assert_close(results[0][1].double(), exact, rtol=1e-4, atol=1.0)


def test_rng_state_then_counts_micro_batches_since_the_seed():
    program, segment = one_segment(num_inputs=0, num_micro_batches=2)
    program.load_rng(segment, 0)
    program.store_output(segment, 0, ALL, 1)
    engine = executor(program, replicas=2)
    engine.set_rng_state(42, 0)

    (states,) = engine.run([], 2)
    assert states.reshape(-1, 4).tolist() == [[42, k, r, 0] for k in range(4) for r in range(2)]
    assert engine.rng_state() == (42, 4)

    (states,) = engine.run([], 1)
    assert states.reshape(-1, 4)[:, 1].tolist() == [4, 4, 5, 5]
    engine.set_rng_state(7, 100)
    (states,) = engine.run([], 1)
    assert states.reshape(-1, 4)[:, :2].tolist() == [[7, 100], [7, 100], [7, 101], [7, 101]]
    engine.set_rng_state(7, 0)
    assert engine.rng_state() == (7, 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_events_when_tracing_then_one_for_each_action(workers):
    engine = executor(pipeline(2, 3), replicas=2, workers=workers)
    x = torch.ones(2 * 3 * 2, 1)
    engine.run([x], 1)
    assert take_events(engine) == []
    engine.set_tracing(True)
    engine.run([x], 2)
    events = take_events(engine)
    assert take_events(engine) == []
    actions = {(e.replica, e.ipu, e.segment, e.window, e.micro_batch) for e in events}
    assert len(events) == len(actions)
    assert actions == {
        (r, ipu, ipu, w, m) for r in (0, 1) for ipu in (0, 1) for w in (0, 1) for m in range(3)
    }
    assert {e.worker for e in events} <= set(range(workers))
    start = {(e.replica, e.ipu, e.window, e.micro_batch): e.start_ns for e in events}
    for event in events:
        assert event.start_ns <= event.end_ns
        if event.ipu == 0:
            consumer = (event.replica, 1, event.window, event.micro_batch)
            assert start[consumer] >= event.end_ns


def test_run_then_other_python_threads_go_on():
    program, segment = one_segment(is_batched=False)
    for register in range(150):
        add(program, segment, "sin", [Reg(register)], [register + 1], dies=[register])
    engine = executor(program)
    span = []

    def run():
        span.append(time.perf_counter())
        engine.run([torch.ones(500_000)], 1)
        span.append(time.perf_counter())

    thread = threading.Thread(target=run)
    ticks = []
    thread.start()
    while thread.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.001)
    thread.join()
    length = span[1] - span[0]
    # With the GIL held no tick could fall well inside the call.
    assert any(span[0] + 0.25 * length < tick < span[0] + 0.75 * length for tick in ticks)


@pytest.mark.parametrize("workers", [1, 2])
def test_run_then_number_of_torch_threads_is_that_of_before(workers):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        executor(training(1), workers=workers).run([torch.ones(1)], 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_run_then_no_graph_is_recorded():
    program, segment = one_segment()
    add(program, segment, "mul.Tensor", [Reg(0), 2.0], [1])
    program.store_output(segment, 1, ALL, 1)
    (result,) = executor(program).run([torch.ones(2, requires_grad=True)], 1)
    assert not result.requires_grad
