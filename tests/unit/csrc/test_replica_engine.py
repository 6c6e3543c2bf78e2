"""Groups of replicas, sharded tensors and ring sums, in programs built by hand."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor

from poptorch_emu import _C
from poptorch_emu.errors import Error

IN_EACH_ORDER = True

FLOAT = torch.float32


def part(program, name, runners, *, ipu=0):
    """Adds a window segment with these runners."""
    segment = program.add_segment(name, ipu, WINDOW)
    program.set_runners(segment, runners)
    return segment


def summing(replicas, *, size, groups=(), is_sharded=False, micro_batches=1, reduces=True):
    """Returns a program whose variable 0 becomes the sum of its inputs over replicas.

    Each replica reads `micro_batches` times `size` numbers.
    """
    program = _C.Program()
    forward = program.add_segment("forward", 0, MICRO_BATCH)
    gradient = program.add_accumulator("g", FLOAT, False)
    total = program.add_variable("total", [size], FLOAT, False)
    program.load_input(forward, 0, program.add_input("x", True))
    program.accumulate(forward, 0, gradient)
    window = []
    if groups:
        program.group_variable(total, groups)
        program.group_accumulator(gradient, groups)
    if is_sharded:
        program.shard_accumulator(gradient)
    elif reduces:
        window.append(part(program, "reduce", range(replicas)))
        program.reduce(window[0], gradient)
    leaders = sorted({list(groups).index(group) for group in groups}) or [0]
    window.append(part(program, "update", leaders))
    program.load_accumulator(window[-1], 0, gradient)
    add(program, window[-1], "mul.Tensor", [Reg(0), 1.0], [1])
    program.store_variable(window[-1], 1, total)
    actions = [*((forward, m) for m in range(micro_batches)), *((s, 0) for s in window)]
    program.set_schedule([actions], micro_batches)
    return program


def ring_sums(values):
    """Returns the sums of the rows of `values` in the documented order, in float32.

    The numbers are cut into as many parts as there are rows; part k is added up beginning with row
    k + 1 and ending with row k.
    """
    count, size = values.shape
    length = -(-size // count)
    result = torch.empty(size)
    for element in range(size):
        owner = element // length
        total = values[(owner + 1) % count, element].clone()
        for step in range(2, count + 1):
            total += values[(owner + step) % count, element]
        result[element] = total
    return result


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("size", [1, 3, 4, 9, 64])
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_gradient_of_replicas_then_summed_in_the_order_of_a_ring(
    replicas: int, size: int, is_sharded: bool, workers: int
) -> None:
    x = torch.randn(replicas, size) * torch.logspace(-3, 3, size)
    engine = executor(
        summing(replicas, size=size, is_sharded=is_sharded), replicas=replicas, workers=workers
    )
    for _ in range(2):
        engine.run([x.flatten()], 1)
        assert torch.equal(engine.read_variable(0, 0), ring_sums(x))


def test_accumulator_when_sharded_then_each_micro_batch_is_summed_over_replicas_first() -> None:
    engine = executor(summing(2, size=1, is_sharded=True, micro_batches=2), replicas=2)
    # In the other order the 1 of replica 0 would be lost: (1e8 + 1) + (-1e8 + 0).
    engine.run([torch.tensor([1e8, -1e8, 1.0, 0.0])], 1)
    assert engine.read_variable(0, 0).item() == 1.0


@pytest.mark.parametrize("workers", [1, 3])
def test_accumulator_when_sharded_then_replicas_hold_their_part_only(workers: int) -> None:
    program = summing(4, size=10, is_sharded=True, micro_batches=5)
    engine = executor(program, replicas=4, workers=workers)
    engine.run([torch.ones(4 * 10 * 5)], 1)
    assert [engine.peak_accumulator_bytes(replica) for replica in range(4)] == [3 * 4] * 4
    assert torch.equal(engine.read_variable(0, 0), torch.full((10,), 20.0))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([0, 0, 1, 1], [3.0, 12.0]),
        ([0, 1, 0, 1], [5.0, 10.0]),
        ([0, 1, 2, 3], [1.0, 2.0, 4.0, 8.0]),
    ],
)
def test_variable_when_grouped_then_each_group_has_its_own_sum(groups, expected) -> None:
    engine = executor(summing(4, size=1, groups=groups), replicas=4, workers=2)
    engine.run([torch.tensor([1.0, 2.0, 4.0, 8.0])], 1)
    assert [engine.read_variable(0, r).item() for r in range(4)] == [expected[g] for g in groups]
    assert engine.variable_bytes() == 4 * len(expected)


def test_accumulator_when_nobody_reduced_it_then_error_names_it() -> None:
    engine = executor(summing(2, size=1, reduces=False), replicas=2)
    with pytest.raises(Error, match="Accumulator 'g' was not added up over its replicas"):
        engine.run([torch.ones(2)], 1)


def test_sums_of_replicas_that_are_too_large_then_error_if_that_is_checked() -> None:
    program = summing(2, size=1)
    program.set_numerics(True, False)
    engine = executor(program, replicas=2)
    engine.run([torch.tensor([2e38, 1e38])], 1)
    assert engine.read_variable(0, 0).item() == torch.tensor(3e38).item()
    with pytest.raises(Error, match="floating-point exception: the accumulated gradient of 'g'"):
        engine.run([torch.tensor([2e38, 2e38])], 1)


def sharded_counter(replicas, size, *, is_stored_sharded):
    """Returns a program in which each replica adds its index + 1 to its part of variable 0.

    Micro-batches give the variable out.
    """
    program = _C.Program()
    forward = program.add_segment("forward", 0, MICRO_BATCH)
    value = program.add_variable("value", [size], FLOAT, False)
    own = program.add_variable("own", [1], FLOAT, True)
    if is_stored_sharded:
        program.shard_variable(value)
    program.load_variable(forward, 0, value)
    program.store_output(forward, 0, ALL, 1)
    update = part(program, "update", range(replicas))
    program.load_variable_shard(update, 0, value)
    program.load_variable(update, 1, own)
    add(program, update, "add.Tensor", [Reg(0), Reg(1)], [2])
    program.store_variable_shard(update, 2, value)
    program.set_schedule([[(forward, 0), (update, 0)]], 1)
    engine = executor(program, replicas=replicas, workers=2)
    for replica in range(replicas):
        engine.write_variable(own, replica, torch.tensor([float(replica + 1)]))
    return engine


@pytest.mark.parametrize("is_stored_sharded", [False, True])
@pytest.mark.parametrize(
    ("size", "added"),
    [(4, [1, 1, 2, 2]), (5, [1, 1, 1, 2, 2]), (1, [1])],
    ids=["even", "filled-up", "one-element"],
)
def test_variable_when_replicas_update_their_parts_then_all_see_the_whole(
    size: int, added: list[int], is_stored_sharded: bool
) -> None:
    engine = sharded_counter(2, size, is_stored_sharded=is_stored_sharded)
    start = torch.arange(float(size))
    engine.write_variable(0, 0, start)
    (outputs,) = engine.run([], 3)
    expected = torch.stack([start + k * torch.tensor(added) for k in range(3)])
    assert torch.equal(outputs.reshape(3, 2, size), expected[:, None].expand(3, 2, size))
    assert torch.equal(engine.read_variable(0, 1), start + 3 * torch.tensor(added))
    held = -(-size // 2) if is_stored_sharded else size
    assert engine.replica_bytes(0) == 4 * held + 4


def test_window_segment_with_one_runner_when_linked_then_all_runners_of_the_other_get_its_value():
    program = _C.Program()
    speaker = part(program, "speaker", [0])
    program.load_constant(speaker, 0, program.add_constant(torch.tensor([5.0])))
    listener = part(program, "listener", range(3), ipu=1)
    heard = program.add_variable("heard", [1], FLOAT, True)
    program.add_link(speaker, [0], listener, [0], 1)
    add(program, listener, "mul.Tensor", [Reg(0), 2.0], [1])
    program.store_variable(listener, 1, heard)
    program.set_schedule([[(speaker, 0)], [(listener, 0)]], 1)
    engine = executor(program, replicas=3, workers=2)
    engine.run([], 2)
    assert [engine.read_variable(heard, replica).item() for replica in range(3)] == [10.0] * 3


def test_link_when_several_runners_send_to_others_then_refused() -> None:
    program = _C.Program()
    speakers = part(program, "speakers", range(2))
    program.load_constant(speakers, 0, program.add_constant(torch.ones(1)))
    listener = part(program, "listener", [0], ipu=1)
    program.add_link(speakers, [0], listener, [0], 1)
    program.set_schedule([[(speakers, 0)], [(listener, 0)]], 1)
    with pytest.raises(Error, match="needs the same runners at both ends"):
        program.validate()


def test_reduction_when_accumulator_is_unknown_then_refused() -> None:
    program = _C.Program()
    segment = part(program, "reduce", range(2))
    program.reduce(segment, 3)
    program.set_schedule([[(segment, 0)]], 1)
    with pytest.raises(Error, match="reduction of segment 'reduce' names accumulator 3"):
        program.validate()


def test_run_when_one_replica_fails_then_no_part_of_the_others_remains() -> None:
    program = _C.Program()
    update = part(program, "update", range(2))
    value = program.add_variable("value", [4], FLOAT, False)
    index = program.add_variable("index", [1], torch.int64, True)
    program.load_constant(update, 0, program.add_constant(torch.ones(4, 2)))
    program.load_variable(update, 1, index)
    add(program, update, "embedding", [Reg(0), Reg(1)], [2])
    add(program, update, "reshape", [Reg(2), [2]], [3])
    program.store_variable_shard(update, 3, value)
    program.set_schedule([[(update, 0)]], 1)
    engine = executor(program, replicas=2)
    engine.write_variable(index, 1, torch.tensor([99]))
    with pytest.raises(Error, match="index"):
        engine.run([], 1)
    assert torch.equal(engine.read_variable(value, 0), torch.zeros(4))
    engine.write_variable(index, 1, torch.tensor([0]))
    engine.run([], 1)
    assert torch.equal(engine.read_variable(value, 0), torch.ones(4))
