"""Segments that run once and keep their registers for all readers, until a weight changes."""

from __future__ import annotations

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, Reg, add, executor, one_segment

from poptorch_emu import _C
from poptorch_emu.errors import Error

FLOAT = torch.float32
PREPARATION = _C.SegmentKind.PREPARATION
RUNS: list[int] = []


@pytest.fixture(scope="module")
def counted():
    """An operator that doubles, and records its run in `RUNS`."""
    library = torch.library.Library("prepared_tests", "DEF")
    library.define("double(Tensor x) -> Tensor")

    def double(x: torch.Tensor) -> torch.Tensor:
        RUNS.append(1)
        return x * 2

    library.impl("double", double, "CPU")
    yield "prepared_tests::double"
    library._destroy()


@pytest.fixture(autouse=True)
def no_runs():
    RUNS.clear()


def program_of(counted: str = "aten::neg", *, micro_batches: int = 1):
    """Returns a program in which both IPUs multiply by a value that is prepared from `w`."""
    program = _C.Program()
    weight = program.add_variable("w", [2], FLOAT, False)
    preparation = program.add_segment("prepare", 0, PREPARATION)
    first = program.add_segment("first", 0, MICRO_BATCH)
    second = program.add_segment("second", 1, MICRO_BATCH)
    program.load_variable(preparation, 0, weight)
    program.load_constant(preparation, 1, program.add_constant(torch.ones(2)))
    program.add_instruction(preparation, counted, "", [Reg(0)], {}, [2], [0], _C.Debug("double"))
    add(program, preparation, "add.Tensor", [Reg(2), Reg(1)], [3], dies=[1, 2])
    program.load_input(first, 0, program.add_input("x", True))
    program.load_prepared(first, 1, preparation, 3)
    add(program, first, "mul.Tensor", [Reg(0), Reg(1)], [2], dies=[0, 1])
    program.add_link(first, [2], second, [0], 2)
    program.load_prepared(second, 1, preparation, 3)
    add(program, second, "mul.Tensor", [Reg(0), Reg(1)], [2])
    program.store_output(second, 2, ALL, 1)
    rows = [[(segment, m) for m in range(micro_batches)] for segment in (first, second)]
    program.set_schedule(rows, micro_batches)
    return program, preparation


def test_preparation_of_a_scalar_then_runs_again_when_it_has_changed(counted):
    program = _C.Program()
    scalar = program.add_scalar("rate", 1.5)
    preparation = program.add_segment("prepare", 0, PREPARATION)
    segment = program.add_segment("first", 0, MICRO_BATCH)
    program.load_scalar(preparation, 0, scalar)
    program.add_instruction(preparation, counted, "", [Reg(0)], {}, [1], [0], _C.Debug("double"))
    program.load_input(segment, 0, program.add_input("x", True))
    program.load_prepared(segment, 1, preparation, 1)
    add(program, segment, "mul.Tensor", [Reg(0), Reg(1)], [2])
    program.store_output(segment, 2, ALL, 1)
    program.set_schedule([[(segment, 0)]], 1)
    engine = executor(program)
    for value, num_runs in ((1.5, 1), (1.5, 1), (-4.0, 2)):
        if value != 1.5:
            engine.set_scalar(scalar, value)
        assert engine.run([torch.ones(3)], 1)[0].tolist() == [2 * value] * 3
        assert len(RUNS) == num_runs


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("replicas", [1, 3])
def test_preparation_then_runs_once_until_a_variable_is_written(counted, workers, replicas):
    program, _ = program_of(counted, micro_batches=4)
    engine = executor(program, replicas=replicas, workers=workers)
    x = torch.randn(4 * replicas, 2)
    for change in range(3):
        weight = torch.randn(2)
        for replica in range(replicas):
            engine.write_variable(0, replica, weight)
        assert len(RUNS) == change
        for _ in range(2):
            (result,) = engine.run([x], 1)
            torch.testing.assert_close(result, x * (2 * weight + 1) ** 2)
            assert len(RUNS) == change + 1


def test_call_of_wrong_inputs_then_leaves_preparation_for_later(counted):
    program, _ = program_of(counted)
    engine = executor(program)
    with pytest.raises(Error, match="takes 1 inputs"):
        engine.run([], 1)
    assert not RUNS
    engine.write_variable(0, 0, torch.ones(2))
    assert engine.run([torch.ones(1, 2)], 1)[0].tolist() == [[9.0, 9.0]]


def test_failed_preparation_then_fails_the_call_and_the_next_one_can_run():
    program, segment = one_segment()
    preparation = program.add_segment("prepare", 0, PREPARATION)
    program.load_variable(preparation, 0, program.add_variable("p", [2], FLOAT, False))
    add(program, preparation, "multinomial", [Reg(0), 1, True], [1])
    program.load_prepared(segment, 1, preparation, 1)
    program.store_output(segment, 1, ALL, 1)
    engine = executor(program)
    for _ in range(2):
        engine.write_variable(0, 0, torch.tensor([-1.0, 2.0]))
        with pytest.raises(Error, match="node 'multinomial'.*segment 'prepare'"):
            engine.run([torch.ones(1)], 1)
        engine.write_variable(0, 0, torch.tensor([0.0, 2.0]))
        assert engine.run([torch.ones(1)], 1)[0].tolist() == [1]


def test_failed_call_then_prepares_again(counted):
    program, _ = program_of(counted)
    engine = executor(program)
    engine.write_variable(0, 0, torch.ones(2))
    with pytest.raises(Error, match=r"mul.*3\]"):
        engine.run([torch.ones(1, 3)], 1)
    assert engine.run([torch.ones(1, 2)], 1)[0].tolist() == [[9.0, 9.0]]
    assert len(RUNS) == 2


def test_program_when_written_and_read_then_prepares_the_same():
    program, _ = program_of()
    program.validate()
    again = _C.Program.deserialize(program.serialize())
    assert again.text() == program.text()
    results = []
    for each in (program, again):
        engine = executor(each)
        engine.write_variable(0, 0, torch.tensor([1.0, 3.0]))
        results.append(engine.run([torch.ones(1, 2)], 1)[0].tolist())
    assert results == [[[0.0, 4.0]]] * 2


def test_text_then_shows_what_is_prepared_and_who_reads_it():
    lines = program_of()[0].text().splitlines()
    assert (
        "prepare on IPU 0: 4 registers, 2 loads, 0 stores, before a call when what it loads was "
        "written"
    ) in lines
    assert lines.count("  %1 = %3 of prepare") == 2


def loads_an_input(program, preparation):
    program.load_input(preparation, 4, 0)


def loads_a_part(program, preparation):
    program.load_variable_shard(preparation, 4, 0)


def loads_random_numbers(program, preparation):
    program.load_rng(preparation, 4)


def loads_what_is_prepared(program, preparation):
    program.load_prepared(preparation, 4, preparation, 3)


def stores(program, preparation):
    program.store_output(preparation, 3, ALL, 1)


def calls_the_host(program, preparation):
    arguments = ["f", [Reg(3)], ["float32[2]"]]
    debug = _C.Debug("call")
    program.add_instruction(
        preparation, "poptorch_emu::host_call", "", arguments, {}, [4], [], debug
    )
    program.set_seen_outside(preparation)


def is_scheduled(program, preparation):
    program.set_schedule([[(preparation, 0), (1, 0)], [(2, 0)]], 1)


def reads_a_stored_variable(program, preparation):
    program.store_variable(1, 2, 0)


def reads_a_remote_variable(program, preparation):
    program.set_remote_variable(0)


def reads_a_sharded_variable(program, preparation):
    program.shard_variable(0)


def reads_a_grouped_variable(program, preparation):
    program.group_variable(0, [0])


def reads_a_replicas_own_variable(program, preparation):
    own = program.add_variable("own", [2], FLOAT, True)
    program.load_variable(preparation, 4, own)


def reads_what_died(program, preparation):
    program.load_prepared(1, 5, preparation, 2)


def reads_beyond_the_registers(program, preparation):
    program.load_prepared(1, 5, preparation, 9)


def reads_of_another_kind(program, preparation):
    program.load_prepared(1, 5, 2, 0)


def reads_of_no_segment(program, preparation):
    program.load_prepared(1, 5, 7, 0)


WHOLE = "which must be whole and not in streaming memory"
SAME = "which must be the same on all replicas"
FAULTS = [
    (loads_an_input, "'prepare' loads something else than whole variables"),
    (loads_a_part, "'prepare' loads something else than whole variables"),
    (loads_random_numbers, "'prepare' loads something else than whole variables"),
    (loads_what_is_prepared, "'prepare' loads something else than whole variables"),
    (stores, "'prepare' has stores or links"),
    (calls_the_host, "'prepare' calls a function of the host"),
    (is_scheduled, "'prepare' is scheduled 1 times in a window instead of 0"),
    (reads_a_stored_variable, "reads 'w', which segment 'first' stores during a call"),
    (reads_a_remote_variable, f"reads 'w', {WHOLE}"),
    (reads_a_sharded_variable, f"reads 'w', {WHOLE}"),
    (reads_a_grouped_variable, f"reads 'w', {SAME}"),
    (reads_a_replicas_own_variable, f"reads 'own', {SAME}"),
    (reads_what_died, "in preparation 'prepare' reads register 2, which holds nothing there"),
    (reads_beyond_the_registers, "in preparation 'prepare' names register 9 of 4"),
    (reads_of_another_kind, "reads a register of 'second', which only a preparation keeps"),
    (reads_of_no_segment, "names segment 7, but there are 3"),
]


@pytest.mark.parametrize(("break_it", "text"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_validate_when_preparation_has_a_fault_then_error_tells_it(break_it, text):
    program, preparation = program_of()
    program.validate()
    break_it(program, preparation)
    with pytest.raises(Error) as caught:
        program.validate()
    assert text in caught.value.message
