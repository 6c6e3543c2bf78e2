"""Exchanges between replicas within a segment: values, waiting, and valid programs."""

from __future__ import annotations

from collections.abc import Callable

import hand_built as build
import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg

from poptorch_emu import _C, Error
from poptorch_emu.ir import exchange as operators  # Registers the operators.

assert operators.ALL_GATHER

# For each exchange, the result on replica r from the values of all replicas.
EXPECTED: dict[str, Callable[[list[torch.Tensor], int], torch.Tensor]] = {
    "all_gather": lambda values, r: torch.stack(values),
    "all_reduce": lambda values, r: torch.stack(values).sum(0),
    "all_to_all": lambda values, r: torch.cat([v.chunk(len(values))[r] for v in values]),
}


def exchange(program: _C.Program, segment: int, name: str, replicas: int, source: int, to: int):
    """Adds an exchange to a segment, from one register to another."""
    program.add_instruction(
        segment, f"poptorch_emu::{name}", "", [Reg(source), replicas], {}, [to], [], _C.Debug(name)
    )


def chain(names: list[str], replicas: int, num_micro_batches: int) -> _C.Program:
    """Returns a program that exchanges its input by each name, and doubles it between exchanges."""
    program = _C.Program()
    segment = program.add_segment("only", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("x", True))
    for number, name in enumerate(names):
        exchange(program, segment, name, replicas, 2 * number, 2 * number + 1)
        # Overwrites the value that the exchange has read, as rewrites may do.
        build.add(program, segment, "mul_.Scalar", [Reg(2 * number), 0.0], [-1])
        build.add(program, segment, "mul.Scalar", [Reg(2 * number + 1), 2.0], [2 * number + 2])
    program.store_output(segment, 2 * len(names), ALL, 1)
    program.set_schedule([[(segment, m) for m in range(num_micro_batches)]], num_micro_batches)
    return program


def expected_chain(names: list[str], values: list[torch.Tensor]) -> list[torch.Tensor]:
    for name in names:
        values = [2 * EXPECTED[name](values, r) for r in range(len(values))]
    return values


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "names", [[name] for name in EXPECTED] + [["all_reduce", "all_to_all", "all_gather"]], ids=str
)
def test_exchanges_then_each_replica_gets_its_values(
    names: list[str], replicas: int, workers: int
) -> None:
    num_micro_batches, num_windows = 3, 2
    program = chain(names, replicas, num_micro_batches)
    x = torch.randn(num_windows * num_micro_batches * replicas * replicas, 4)
    rows = [block.chunk(replicas) for block in x.chunk(num_windows * num_micro_batches)]
    expected = [torch.cat(expected_chain(names, list(values))) for values in rows]
    (found,) = build.executor(program, replicas=replicas, workers=workers).run([x], num_windows)
    torch.testing.assert_close(found, torch.cat(expected))


def test_sum_of_replicas_then_has_the_order_of_a_ring() -> None:
    # Part k of five contains the values of replicas k + 1, ..., k - 1, k in this order.
    torch.manual_seed(0)
    x = torch.randn(5, 23) * 10.0 ** torch.randint(-4, 4, (5, 23))
    parts = []
    for k in range(5):
        part = slice(5 * k, 5 * k + 5)
        total = x[(k + 1) % 5][part].clone()
        for step in range(2, 6):
            total += x[(k + step) % 5][part]
        parts.append(total)
    (found,) = build.executor(chain(["all_reduce"], 5, 1), replicas=5).run([x], 1)
    assert torch.equal(found, (2 * torch.cat(parts)).expand(5, 23))


def test_own_piece_then_is_that_of_the_replica() -> None:
    program = _C.Program()
    segment = program.add_segment("only", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("x", False))
    exchange(program, segment, "own_piece", 3, 0, 1)
    program.store_output(segment, 1, ALL, 1)
    program.set_schedule([[(segment, 0)]], 1)
    x = torch.randn(3, 4)
    (found,) = build.executor(program, replicas=3, groups=[0, 0, 0]).run([x], 1)
    assert torch.equal(found.flatten(), x.flatten())


def test_replicas_when_one_fails_in_between_then_the_next_call_runs() -> None:
    program = _C.Program()
    segment = program.add_segment("only", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("x", True))
    exchange(program, segment, "all_reduce", 2, 0, 1)
    build.add(program, segment, "index_select", [Reg(1), 0, Reg(2)], [3])
    program.load_input(segment, 2, program.add_input("index", True))
    exchange(program, segment, "all_gather", 2, 3, 4)
    program.store_output(segment, 4, ALL, 1)
    program.set_schedule([[(segment, 0), (segment, 1)]], 2)
    executor = build.executor(program, replicas=2, workers=2)
    x = torch.arange(8.0).reshape(4, 2)
    for _ in range(2):
        with pytest.raises(Error, match="index out of range"):
            executor.run([x, torch.tensor([0, 0, 0, 9])], 1)
        (found,) = executor.run([x, torch.tensor([0, 0, 0, 0])], 1)
        first, second = x[:2].sum(0, keepdim=True), x[2:].sum(0, keepdim=True)
        expected = [first, first, first, first, second, second, second, second]
        assert torch.equal(found.reshape(8, 2), torch.cat(expected))


def test_exchange_between_another_number_of_replicas_then_error() -> None:
    with pytest.raises(Error, match="an exchange between 3 replicas, but the model runs on 2"):
        build.executor(chain(["all_reduce"], 3, 1), replicas=2).run([torch.ones(2, 1)], 1)


class Relayed:
    """Two stages with two exchanges each, which the network's row carries out."""

    def __init__(self) -> None:
        program = self.program = _C.Program()
        self.stages = [program.add_segment(f"stage {ipu}", ipu, MICRO_BATCH) for ipu in range(2)]
        program.load_input(self.stages[0], 0, program.add_input("x", True))
        program.add_link(self.stages[0], [2], self.stages[1], [0], 1)
        for stage in self.stages:
            exchange(program, stage, "all_reduce", 2, 0, 1)
            exchange(program, stage, "all_reduce", 2, 1, 2)
        self.relays = {
            (stage, index): program.add_segment(f"exchange {index} of {stage}", 2, MICRO_BATCH)
            for stage in range(2)
            for index in range(2)
        }
        for (stage, index), segment in self.relays.items():
            program.relay(segment, self.stages[stage], index)
        self.rows = [[(stage, m) for m in range(2)] for stage in self.stages]
        self.more: list[list[tuple[int, int]]] = []
        # The second stage is one micro-batch behind the first one.
        self.order = [
            *((0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)),
            *((1, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1)),
        ]

    def finish(self) -> _C.Program:
        network = [(self.relays[stage, index], m) for stage, index, m in self.order]
        self.program.set_schedule([*self.rows, network, *self.more], 2)
        self.program.validate()
        return self.program


def in_lockstep(built: Relayed) -> None:
    built.order = [(stage, index, m) for m in range(2) for stage in range(2) for index in range(2)]


def valid(built: Relayed) -> None:
    pass


@pytest.mark.parametrize("arrange", [valid, in_lockstep])
def test_network_when_it_follows_the_stages_then_the_program_is_valid(arrange) -> None:
    built = Relayed()
    arrange(built)
    program = built.finish()
    assert "carries out collective 1 of stage 0" in program.text()
    assert _C.Program.deserialize(program.serialize()).text() == program.text()
    with pytest.raises(Error, match="'stage 0' exchanges values with replicas of other processes"):
        build.executor(program, replicas=2)


def second_stage_first(built: Relayed) -> None:
    built.order = sorted(built.order, key=lambda entry: (-entry[0], entry[2], entry[1]))


def second_exchange_first(built: Relayed) -> None:
    built.order[:2] = (0, 1, 0), (0, 0, 0)


def of_nobody(built: Relayed) -> None:
    built.program.relay(built.relays[0, 0], built.stages[0], 2)


def twice(built: Relayed) -> None:
    built.program.relay(built.relays[0, 0], built.stages[0], 1)


def doing_more(built: Relayed) -> None:
    built.program.load_rng(built.relays[0, 0], 0)


def elsewhere(built: Relayed) -> None:
    segment = built.program.add_segment("elsewhere", 3, MICRO_BATCH)
    exchange(built.program, built.stages[1], "all_reduce", 2, 2, 3)
    built.program.relay(segment, built.stages[1], 2)
    built.more = [[(segment, 0), (segment, 1)]]


def in_a_body(built: Relayed) -> None:
    body = _C.Body("body", 2, [0], -1, [1])
    body.add_instruction(
        "poptorch_emu::all_reduce", "", [Reg(0), 2], {}, [1], [], _C.Debug("inside"), []
    )
    loop = ["body", 2, False, [Reg(0)], [], [], []]
    build_loop = (built.stages[0], "poptorch_emu::for_loop", "", loop, {}, [3], [])
    built.program.add_instruction(*build_loop, _C.Debug("loop"), [body])


def in_an_update(built: Relayed) -> None:
    update = built.program.add_segment("update", 0, WINDOW)
    built.program.load_constant(update, 0, built.program.add_constant(torch.ones(2)))
    exchange(built.program, update, "all_reduce", 2, 0, 1)
    built.rows[0].append((update, 0))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (second_stage_first, "waits for an exchange that its turn does not come to, which locks"),
        (second_exchange_first, "waits for an exchange that its turn does not come to"),
        (of_nobody, "carries out an exchange between replicas .* that does not exist"),
        (twice, "that another segment carries out"),
        (doing_more, "only a micro-batch segment may do that does nothing else"),
        (elsewhere, "on row 3, but others do on row 2; all exchanges are one list"),
        (in_a_body, "'inside' of segment 'stage 0' .* inside a loop or a branch"),
        (in_an_update, "'update' is an exchange .* only a micro-batch segment may have"),
    ],
)
def test_exchange_when_it_could_go_wrong_then_the_program_is_refused(spoil, message) -> None:
    built = Relayed()
    spoil(built)
    with pytest.raises(Error, match=message):
        built.finish()
