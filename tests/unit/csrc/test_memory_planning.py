"""The engine's memory: live tensors share no byte, and a steady state maps nothing."""

from __future__ import annotations

import resource

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
)
from hypothesis import given
from hypothesis import strategies as st
from support.forked_programs import run_forked
from support.processors import needs_mkl, needs_onednn, needs_vectors

import poptorch_emu as poptorch
from poptorch_emu import _C

Piece = tuple[int, int, int]
KEPT = 2**63 - 1

_PIECES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 5000)).map(
        lambda piece: (piece[0], piece[0] + piece[1], piece[2])
    ),
    max_size=40,
)


def check_places(pieces: list[Piece], offsets: list[int], num_bytes: int) -> None:
    """Checks places by comparing each pair of pieces, the simplest possible way."""
    for index, (birth, death, size) in enumerate(pieces):
        assert offsets[index] % 64 == 0
        assert 0 <= offsets[index] and offsets[index] + size <= num_bytes
        for other in range(index):
            other_birth, other_death, other_size = pieces[other]
            if birth < other_death and other_birth < death:
                assert (
                    offsets[index] + size <= offsets[other]
                    or offsets[other] + other_size <= offsets[index]
                )


@given(_PIECES)
def test_pieces_when_placed_then_those_needed_together_share_no_byte(pieces: list[Piece]) -> None:
    offsets, num_bytes = _C.plan_offsets(pieces)
    check_places(pieces, offsets, num_bytes)
    live = [sum(p[2] for p in pieces if p[0] <= moment < p[1]) for moment in range(45)]
    assert max(live, default=0) <= num_bytes <= sum(-(-p[2] // 64) * 64 for p in pieces)


def test_pieces_when_one_after_the_other_then_take_the_place_of_the_largest() -> None:
    assert _C.plan_offsets([(0, 1, 640), (1, 2, 64), (2, 3, 1280)]) == ([0, 0, 0], 1280)


class Layers(torch.nn.Module):
    """Two stages whose tensors are large enough for the engine's own memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(256, 512)
        self.second = torch.nn.Linear(512, 256)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("first", ipu_id=0):
            x = torch.nn.functional.gelu(self.first(x))
        with poptorch.Block("second", ipu_id=1):
            x = self.second(x)
            return x, poptorch.identity_loss((x * x).mean(), reduction="none")


def training(accumulation: int = 4) -> poptorch.PoplarExecutor:
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    options.deviceIterations(2)
    options.outputMode(poptorch.OutputMode.Final)
    model = Layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return poptorch.trainingModel(model, options, optimizer)


def test_segments_when_they_ran_then_their_plans_hold() -> None:
    model = training()
    model(torch.randn(2 * 4 * 64, 256))
    session = model._session
    assert session is not None
    num_planned = 0
    for segment in range(len(session.executable.segment_names)):
        plan = session._executor.memory_plan(segment)
        placed = [piece for piece in plan if piece[3] >= 0]
        assert all(piece[1] == KEPT for piece in plan if piece[3] < 0)
        check_places(
            [piece[:3] for piece in placed],
            [piece[3] for piece in placed],
            session._executor.arena_bytes(),
        )
        num_planned += len(placed)
    assert num_planned > 4


def faults_of(call) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.parametrize("accumulation", [4, 8])
def test_call_when_warm_then_maps_next_to_nothing(accumulation: int) -> None:
    model = training(accumulation)
    x = torch.randn(2 * accumulation * 64, 256)
    for _ in range(2):
        model(x)
    faults = sorted(faults_of(lambda: model(x)) for _ in range(5))
    # The activations of one micro-batch fill more than a hundred pages, and a call has 8 or 16.
    assert faults[2] < 20


def test_first_call_when_over_then_what_its_first_runs_took_is_released() -> None:
    class Chain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for size in range(1, 9):  # The sizes differ, so that results share no blocks.
                x = torch.cat([x, x[:, : 128 * size]], 1).tanh()
            return x[:, :1]

    options = poptorch.Options().deviceIterations(8)
    model = poptorch.inferenceModel(Chain(), options)
    model(torch.randn(8 * 64, 1024))
    session = model._session
    assert session is not None
    arena, pool = session._executor.arena_bytes(), session._executor.pool_bytes()
    assert arena > 2**21 and pool < arena / 4


def test_weight_when_it_was_returned_then_stays_as_it_was() -> None:
    class Weight(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(300, 200))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.weight, x + self.weight

    model = Weight()
    options = poptorch.Options().outputMode(poptorch.OutputMode.Final)
    inference = poptorch.inferenceModel(model, options)
    first, _ = inference(torch.zeros(300, 200))
    with torch.no_grad():
        model.weight.fill_(2)
    inference.copyWeightsToDevice()
    second, total = inference(torch.zeros(300, 200))
    assert bool((first == 1).all()) and bool((second == 2).all()) and bool((total == 2).all())


def test_memory_when_calls_go_on_then_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two workers may get further apart than ever before, and then need more memory.
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", "1")
    model = training()
    x = torch.randn(2 * 4 * 64, 256)
    for _ in range(3):
        model(x)
    session = model._session
    assert session is not None
    before = session._executor.arena_bytes(), session._executor.pool_bytes()
    for _ in range(5):
        model(x)
    assert (session._executor.arena_bytes(), session._executor.pool_bytes()) == before
    assert before[0] > 0


@pytest.mark.parametrize("workers", [2, 4])
def test_weight_when_replaced_then_no_worker_keeps_the_old_one(workers: int) -> None:
    num_numbers, micro_batches, num_readers = 2**20, 4, 3
    program = _C.Program()
    weight = program.add_variable("w", [num_numbers], torch.float32, False)
    x = program.add_input("x", True)
    readers = [program.add_segment(f"reader {i}", 0, MICRO_BATCH) for i in range(num_readers)]
    for reader in readers:
        program.load_input(reader, 0, x)
        program.load_variable(reader, 1, weight)
        add(program, reader, "mul.Tensor", [Reg(0), Reg(1)], [2], dies=[1])
        add(program, reader, "sum", [Reg(2)], [3], dies=[2])
        program.store_output(reader, 3, ALL, 1)
    update = program.add_segment("update", 0, WINDOW)
    program.load_variable(update, 0, weight)
    add(program, update, "mul.Tensor", [Reg(0), 2.0], [1])
    program.store_variable(update, 1, weight)
    actions = [(reader, m) for m in range(micro_batches) for reader in readers]
    program.set_schedule([[*actions, (update, 0)]], micro_batches)
    pools = []
    for count in (1, workers):
        engine = executor(program, workers=count)
        for _ in range(12):
            engine.run([torch.randn(3 * micro_batches, 1)], 3)
        pools.append(engine.pool_bytes())
    assert pools[1] <= pools[0] + 2**20


def test_memory_when_workers_help_with_a_loss_then_its_plan_holds() -> None:
    program, segment = one_segment(3)
    add(program, segment, "log_softmax.int", [Reg(0), 1], [3])
    arguments = [Reg(2), Reg(3), Reg(1), 2, -100, Reg(2)]
    program.add_instruction(
        segment, "poptorch_emu::cross_entropy_backward", "", arguments, {}, [4], [3], _C.Debug("")
    )
    add(program, segment, "sum", [Reg(4)], [5], dies=[4])
    program.store_output(segment, 5, ALL, 1)
    engine = executor(program, workers=2, follows_lists=True)
    inputs = [torch.randn(4096, 500), torch.randint(500, (4096,)), torch.ones(1)]
    for _ in range(25):
        engine.run(inputs, 1)
    assert engine.arena_bytes() > 0 and engine.pool_bytes() == 0


def test_results_when_kept_then_outlive_the_model() -> None:
    model = training()
    x = torch.randn(2 * 4 * 64, 256)
    output, _ = model(x)
    expected = output.clone()
    model(torch.zeros_like(x))
    model.destroy()
    del model
    torch.testing.assert_close(output, expected, rtol=0, atol=0)


def test_host_function_when_it_keeps_what_it_is_given_then_that_stays() -> None:
    kept: list[torch.Tensor] = []

    class Watched(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.watch = poptorch.CPU(self.keep, "keep")

        def keep(self, x: torch.Tensor) -> torch.Tensor:
            kept.append(x)
            return x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.watch(x * 2) + 1

    model = poptorch.inferenceModel(Watched())
    for value in range(3):
        model(torch.full((200, 300), float(value)))
    for value, tensor in enumerate(kept[-3:]):
        assert bool((tensor == 2.0 * value).all())


PACKED = """
import sys
import torch
import poptorch_emu as poptorch
from poptorch_emu.engine import product_kernels
from poptorch_emu.engine.product_kernels import Kernel, Limits, Role, Row

kernel = Kernel[sys.argv[1]]
row = Row(Role.FIXED_LAYER, kernel, Limits(), gives="", is_packed=True)
product_kernels.TABLE = (row,)

def resident_mib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))

width, rows = 4096, 64
model = torch.nn.Sequential(torch.nn.Linear(width, width, bias=False), torch.nn.ReLU())
small = poptorch.inferenceModel(torch.nn.Linear(512, 512).eval())
small(torch.ones(rows, 512))
before = resident_mib()
inference = poptorch.inferenceModel(model.eval())
result = inference(torch.ones(rows, width))
print((resident_mib() - before) / (width * width * 4 / 2**20))
text = inference._executable.program.text()
assert ("mkldnn::_reorder" in text) is (kernel is Kernel.ONEDNN)
weight = model[0].weight.detach().clone()
with torch.no_grad():
    torch.testing.assert_close(result, model(torch.ones(rows, width)))
    model[0].weight.zero_()
inference.copyWeightsToHost()
assert torch.equal(model[0].weight, weight)
"""


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param("ONEDNN", marks=needs_onednn),
        pytest.param("LIBRARY", marks=needs_mkl),
        pytest.param("PANELS", marks=needs_vectors),
    ],
)
def test_device_when_weights_are_packed_then_holds_one_copy_more(kernel: str) -> None:
    done = run_forked(["-c", PACKED, kernel])
    assert done.returncode == 0, done.stderr
    assert 1.9 < float(done.stdout.splitlines()[-1]) < 2.4
