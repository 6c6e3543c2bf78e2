"""Gradients that are added row by row, and updates of these rows: the bits of dense gradients."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor

from poptorch_emu import _C
from poptorch_emu.errors import Error

IN_EACH_ORDER = True

MICRO_BATCHES, WINDOWS, LOOKUPS = 3, 2, 12
NUM_ROWS, WIDTH = 7, 5


def summing(
    *,
    by_rows,
    padding_index=-1,
    is_remote=False,
    replicas=1,
    num_rows=NUM_ROWS,
    views=(),
    micro_batches=MICRO_BATCHES,
):
    """Returns a program that adds up an embedding's gradients and gives each window's sum.

    The program first applies `views`, operators with their arguments, to the gradients.
    """
    program = _C.Program()
    segment = program.add_segment("backward", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("rows", True))
    program.load_input(segment, 1, program.add_input("indices", True))
    accumulator = program.add_accumulator("g", torch.float32, False)
    if is_remote:
        program.set_remote_accumulator(accumulator)
    rows = 0
    for operator, *args in views:
        source, rows = rows, rows + 10
        add(program, segment, operator, [Reg(source), *args], [rows])
    if by_rows:
        program.accumulate_rows(segment, rows, accumulator, 1, num_rows, padding_index)
    else:
        args = [Reg(rows), Reg(1), num_rows, padding_index, False]
        add(program, segment, "embedding_dense_backward", args, [2])
        program.accumulate(segment, 2, accumulator)
    update = program.add_segment("update", 0, WINDOW)
    program.set_runners(update, list(range(replicas)))
    if replicas > 1:
        reduction = program.add_segment("reduce", 0, WINDOW)
        program.set_runners(reduction, list(range(replicas)))
        program.reduce(reduction, accumulator)
    program.load_accumulator(update, 0, accumulator)
    program.store_output(update, 0, ALL, 1)
    window = [(update, 0)] if replicas == 1 else [(reduction, 0), (update, 0)]
    actions = [*((segment, m) for m in range(micro_batches)), *window]
    program.set_schedule([actions], micro_batches)
    return program


def lookups(replicas=1):
    torch.manual_seed(0)
    count = MICRO_BATCHES * WINDOWS * LOOKUPS * replicas
    indices = torch.randint(NUM_ROWS - 1, (count,))
    # The last row is looked up in the first window only, so later sums must not contain it.
    indices[3] = indices[5] = NUM_ROWS - 1
    return [torch.randn(count, WIDTH), indices]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("is_remote", [False, True], ids=["on chip", "remote"])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("padding_index", [-1, 2])
def test_sum_when_rows_are_added_then_has_the_bits_of_dense_gradients(
    padding_index, replicas, is_remote, dtype
):
    rows, indices = lookups(replicas)
    inputs = [rows.to(dtype), indices]
    sums = []
    for by_rows in (True, False):
        program = summing(
            by_rows=by_rows, padding_index=padding_index, replicas=replicas, is_remote=is_remote
        )
        engine = executor(program, replicas=replicas)
        sums.append([engine.run(inputs, WINDOWS)[0] for _ in range(2)])
        sums.append((engine.remote_stored_bytes(), engine.remote_loaded_bytes()))
    (first, second), moved, (dense, _), dense_moved = sums
    assert torch.equal(first.view(torch.int32), dense.view(torch.int32))
    assert torch.equal(second, dense)
    assert moved == dense_moved


@pytest.mark.parametrize(
    ("share", "views"),
    [
        (3, [("unsqueeze", 1), ("expand", [LOOKUPS // 3, 3, WIDTH])]),
        (LOOKUPS, [("expand", [LOOKUPS, WIDTH])]),
        (1, [("view", [3, LOOKUPS // 3, WIDTH]), ("transpose.int", 0, 1)]),
        (1, [("view", [WIDTH, LOOKUPS]), ("t",)]),
    ],
    ids=["repeated", "all-one-row", "transposed", "by-columns"],
)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sum_when_rows_lie_in_another_order_then_has_the_same_bits(share, views, workers, dtype):
    rows, indices = lookups()
    inputs = [rows[: len(rows) // share].to(dtype), indices]
    by_rows, dense = (
        executor(summing(by_rows=kind, views=views), workers=workers).run(inputs, WINDOWS)[0]
        for kind in (True, False)
    )
    assert torch.equal(by_rows, dense)


def test_sum_when_indices_have_32_bits_and_two_dimensions_then_rows_are_found():
    rows, indices = lookups()
    (expected,) = executor(summing(by_rows=True)).run([rows, indices], WINDOWS)
    shaped = [rows.view(-1, 2, WIDTH), indices.view(-1, 2).int()]
    (result,) = executor(summing(by_rows=True)).run(shaped, WINDOWS)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("wrong", [-1, NUM_ROWS])
def test_sum_when_a_row_does_not_exist_then_error_and_the_next_call_runs(wrong):
    rows, indices = lookups()
    engine = executor(summing(by_rows=True))
    broken = indices.clone()
    broken[-1] = wrong
    with pytest.raises(Error, match=f"belongs to row {wrong} of a weight with {NUM_ROWS} rows"):
        engine.run([rows, broken], WINDOWS)
    (result,) = engine.run([rows, indices], WINDOWS)
    assert torch.equal(result, executor(summing(by_rows=False)).run([rows, indices], WINDOWS)[0])


def test_program_when_written_and_read_then_adds_the_same_rows():
    program = summing(by_rows=True, padding_index=1)
    program.validate()
    copy = _C.Program.deserialize(program.serialize())
    assert copy.text() == program.text()
    assert "%0 -> rows %1 of accumulator g" in copy.text()
    inputs = lookups()
    (expected,) = executor(program).run(inputs, WINDOWS)
    assert torch.equal(executor(copy).run(inputs, WINDOWS)[0], expected)


def is_half(program):
    return program.add_accumulator("h", torch.float16, False)


def is_mean(program):
    return program.add_accumulator("h", torch.float32, True)


def is_in_parts(program):
    accumulator = program.add_accumulator("h", torch.float32, False)
    program.shard_accumulator(accumulator)
    return accumulator


@pytest.mark.parametrize("make", [is_half, is_mean, is_in_parts])
def test_validate_when_a_sum_takes_no_rows_then_error_tells_it(make):
    program = summing(by_rows=True)
    program.accumulate_rows(0, 0, make(program), 1, NUM_ROWS, -1)
    with pytest.raises(Error, match="adds rows to 'h', which is possible for a whole float32 sum"):
        program.validate()


def test_validate_when_there_are_no_rows_or_no_indices_then_error_tells_it():
    with pytest.raises(Error, match="adds rows to 'g', which is said to have 0"):
        summing(by_rows=True, num_rows=0).validate()
    program = summing(by_rows=True)
    program.accumulate_rows(0, 0, program.add_accumulator("h", torch.float32, False), 5, 3, -1)
    with pytest.raises(Error, match="'a store' in segment 'backward' names register 5 of 2"):
        program.validate()


def test_validate_when_rows_and_dense_gradients_meet_then_error_tells_it():
    program = summing(by_rows=True)
    program.accumulate(0, 0, 0)
    with pytest.raises(Error, match="Accumulator 'g' is added to twice"):
        program.validate()


def updating(
    *,
    by_rows,
    in_place=False,
    is_remote=False,
    padding_index=-1,
    num_rows=NUM_ROWS,
    width=WIDTH,
    **kinds,
):
    """Returns a program that subtracts half of each window's gradients from a matrix."""
    program = summing(by_rows=True, padding_index=padding_index, num_rows=num_rows, **kinds)
    weight = program.add_variable("w", [num_rows, width], torch.float32, False)
    if is_remote:
        program.set_remote_variable(weight)
    update = 1
    if in_place:
        program.load_variable(update, 1, weight)
        # Value 0 is the matrix, 1 the sums. Value 2 is 0 and the only constant times 1.
        code = [[Reg(1)], [], [5, 2, 0, 1, -1, 0], [-0.5], [2], [0], 0]
        name = "poptorch_emu::elementwise_rows"
        program.add_instruction(update, name, "", code, {}, [3], [], _C.Debug("update"))
        program.store_variable(update, 3, weight)
        return program
    if by_rows:
        program.load_variable_rows(update, 1, weight, 0)
        program.load_accumulator_rows(update, 2, 0)
    else:
        program.load_variable(update, 1, weight)
        program.load_accumulator(update, 2, 0)
    add(program, update, "add.Tensor", [Reg(1), Reg(2)], [3], alpha=-0.5)
    if by_rows:
        program.store_variable_rows(update, 3, weight, 0)
    else:
        program.store_variable(update, 3, weight)
    return program


def test_update_when_only_touched_rows_change_then_bits_are_those_of_the_whole():
    inputs = lookups()
    weights = []
    for ways in ({"by_rows": True}, {"by_rows": True, "in_place": True}, {"by_rows": False}):
        engine = executor(updating(**ways))
        engine.write_variable(0, 0, torch.arange(1.0 * NUM_ROWS * WIDTH).view(NUM_ROWS, WIDTH))
        for _ in range(2):
            engine.run(inputs, WINDOWS)
        weights.append(engine.read_variable(0, 0))
    by_rows, in_place, whole = weights
    assert torch.equal(by_rows, whole)
    assert torch.equal(in_place, whole)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_update_when_rows_are_many_then_workers_share_them_and_bits_stay(num_workers, in_place):
    num_rows, width, lookups = 5000, 64, 1000
    torch.manual_seed(1)
    count = MICRO_BATCHES * WINDOWS * lookups
    # Some rows occur several times within a micro-batch, others in several micro-batches.
    inputs = [torch.randn(count, width), torch.randint(num_rows, (count,))]
    start = torch.randn(num_rows, width)
    program = updating(by_rows=True, in_place=in_place, num_rows=num_rows, width=width)
    engine = executor(program, workers=num_workers)
    engine.write_variable(0, 0, start)
    for _ in range(10):
        engine.run(inputs, WINDOWS)
    expected = start
    for _ in range(10):
        for window in zip(*(tensor.split(count // WINDOWS) for tensor in inputs), strict=True):
            gradients = [
                torch.ops.aten.embedding_dense_backward(rows, indices, num_rows, -1, False)
                for rows, indices in zip(*(t.split(lookups) for t in window), strict=True)
            ]
            total = torch.zeros(num_rows, width)
            for gradient in gradients:
                total += gradient
            expected = expected.add(total, alpha=-0.5)
    assert torch.equal(engine.read_variable(0, 0), expected)


@pytest.mark.parametrize("share", [1, 300])
def test_sum_when_summands_take_more_memory_than_sums_then_has_the_bits_of_dense_ones(share):
    # A micro-batch has about 10 MB of summands, or 68 KB if lookups share rows, for 7 rows of 4 KB.
    count, width = 2400, 1024
    torch.manual_seed(0)
    rows = torch.randn(MICRO_BATCHES * WINDOWS * count // share, width)
    indices = torch.randint(NUM_ROWS, (MICRO_BATCHES * WINDOWS * count,))
    views = [("unsqueeze", 1), ("expand", [count // share, share, width])]
    results = [
        executor(summing(by_rows=kind, views=views)).run([rows, indices], WINDOWS)[0]
        for kind in (True, False)
    ]
    assert torch.equal(*results)


def test_sum_when_more_lookups_are_kept_than_fit_then_has_the_bits_of_dense_ones():
    # A lookup takes 16 bytes, which is more than its row of three numbers.
    count = 240_000
    torch.manual_seed(0)
    rows = torch.randn(MICRO_BATCHES * WINDOWS * count, 3)
    indices = torch.randint(NUM_ROWS, (len(rows),))
    results = [
        executor(summing(by_rows=kind)).run([rows, indices], WINDOWS)[0] for kind in (True, False)
    ]
    assert torch.equal(*results)


def test_update_when_others_read_the_rows_too_then_all_have_the_same_sums():
    rows, indices = lookups()
    program = updating(by_rows=True, in_place=True)
    program.load_accumulator_rows(1, 2, 0)
    sums = program.store_output(1, 2, ALL, 1)
    engine = executor(program)
    results = engine.run([rows[: len(rows) // WINDOWS], indices[: len(rows) // WINDOWS]], 1)
    touched = results[0][results[0].any(1)]
    torch.testing.assert_close(results[sums].sort(0).values, touched.sort(0).values, rtol=0, atol=0)
    assert torch.equal(engine.read_variable(0, 0), results[0] * -0.5)


def test_update_when_numbers_are_checked_then_has_the_same_bits():
    weights = []
    for checks in (False, True):
        program = updating(by_rows=True, in_place=True)
        program.set_numerics(checks, False)
        engine = executor(program)
        engine.run(lookups(), WINDOWS)
        weights.append(engine.read_variable(0, 0))
    assert torch.equal(*weights)


def test_sum_when_negative_zeros_are_added_then_is_zero_like_a_dense_one():
    rows, indices = lookups()
    inputs = [torch.full_like(rows, -0.0), indices]
    (result,) = executor(summing(by_rows=True)).run(inputs, WINDOWS)
    assert not torch.signbit(result).any()


@pytest.mark.parametrize("in_place", [False, True])
def test_update_when_nothing_was_touched_then_weight_stays(in_place):
    engine = executor(updating(by_rows=True, in_place=in_place, padding_index=0))
    count = MICRO_BATCHES * LOOKUPS
    engine.write_variable(0, 0, torch.ones(NUM_ROWS, WIDTH))
    engine.run([torch.ones(count, WIDTH), torch.zeros(count, dtype=torch.int64)], 1)
    assert torch.equal(engine.read_variable(0, 0), torch.ones(NUM_ROWS, WIDTH))


@pytest.mark.parametrize("in_place", [False, True])
def test_update_when_a_later_window_fails_then_weight_is_that_of_the_last_complete_one(in_place):
    rows, indices = lookups()
    engine = executor(updating(by_rows=True, in_place=in_place))
    half = len(rows) // WINDOWS
    engine.run([rows[:half], indices[:half]], 1)
    expected = engine.read_variable(0, 0)
    engine.write_variable(0, 0, torch.zeros(NUM_ROWS, WIDTH))
    indices[-1] = NUM_ROWS
    with pytest.raises(Error, match="belongs to row"):
        engine.run([rows, indices], WINDOWS)
    assert torch.equal(engine.read_variable(0, 0), expected)


def test_update_program_when_written_and_read_then_is_the_same():
    program = updating(by_rows=True)
    program.validate()
    copy = _C.Program.deserialize(program.serialize())
    assert copy.text() == program.text()
    assert "%3 -> touched rows of variable w" in copy.text()
    assert "%2 = touched rows of accumulator g" in copy.text()


def test_update_when_there_are_two_replicas_then_error_tells_it():
    program = updating(by_rows=True)
    with pytest.raises(Error, match="'update' updates single rows, which one replica can do"):
        executor(program, replicas=2)


def test_validate_when_touched_rows_are_unknown_then_error_tells_it():
    program = summing(by_rows=False)
    program.load_accumulator_rows(1, 1, 0)
    with pytest.raises(Error, match="asks for the rows of 'g' that were added to"):
        program.validate()
    program = summing(by_rows=True)
    program.load_accumulator_rows(0, 2, 0)
    with pytest.raises(Error, match="segment 'backward' asks for the rows of 'g'"):
        program.validate()
    with pytest.raises(Error, match="takes rows of 'w', which must be a whole matrix and not in"):
        updating(by_rows=True, is_remote=True).validate()
