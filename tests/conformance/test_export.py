"""Exported pipelines train as plain PyTorch does, bit for bit, and as the emulator by values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.exported_models import (
    NUM_MICRO_BATCHES,
    Case,
    run_in_processes,
    train_exported,
    train_on_emulator,
    train_plain,
)
from support.helpers import assert_near

OWN_FORMULAS = (
    *("LAMB", "LAMB without bias correction"),
    *("damped", "TensorFlow's", "half states"),
)
CASES = {
    1: (Case("mlp", 2),),
    2: (
        Case("mlp", 2),
        Case("mlp", 2, "gpipe"),
        Case("mlp", 2, order="interleaved"),
        Case("mlp", 2, order="sequential"),
        Case("mlp", 4),
        Case("mlp", 4, "sequential"),
        Case("cnn", 2),
        Case("transformer", 4),
        *(Case("mlp", 2, order=order) for order in ("gpipe", "one_f_one_b", "zero_bubble_h2")),
        *(Case("mlp", 4, order=order) for order in ("interleaved_1f1b", "zero_bubble_v")),
        Case("mlp", 4, order="dualpipe_v"),
        Case("mlp", 4, "zero_bubble_h1"),
        Case("mlp", 2, order="late weights"),
        Case("cnn", 2, order="zero_bubble_h1"),
        Case("transformer", 4, order="zero_bubble_v"),
        Case("transformer", 4, "table", order="dualpipe_v"),
        Case("mlp", 4, order="looped_bfs"),
        *(Case("tied", stages) for stages in (2, 4)),
        Case("tied", 4, order="zero_bubble_v"),
        *(Case("decoder", stages) for stages in (2, 4)),
        Case("decoder", 4, order="zero_bubble_v"),
        Case("unet", 4),
        Case("unet", 4, order="dualpipe_v"),
        *(Case("biased", 4, order=order) for order in ("zero_bubble_h1", "dualpipe_v")),
        Case("mlp", 4, optimizer="clipped"),
        Case("tied", 4, order="zero_bubble_h1", optimizer="clipped"),
        Case("cnn", 2, num_replicas=2),
        Case("cnn", 2, num_replicas=2, is_wrapped=True),
        *(Case("mlp", 2, optimizer=name) for name in OWN_FORMULAS),
    ),
    4: (
        Case("mlp", 4),
        Case("cnn", 4, "gpipe"),
        Case("mlp", 4, order="zero_bubble_h2"),
        Case("mlp", 8, order="zero_bubble_v"),
        Case("transformer", 8, order="dualpipe_v"),
        Case("mlp", 8, order="interleaved_1f1b"),
        Case("tied", 4),
        Case("tied", 8, order="zero_bubble_v", optimizer="clipped"),
        Case("decoder", 4, order="zero_bubble_h2"),
        Case("unet", 8, order="interleaved_1f1b"),
        Case("mlp", 2, num_replicas=2, is_mean=False),
        Case("mlp", 2, num_replicas=2, is_wrapped=True, is_mean=False),
        Case("tied", 2, num_replicas=2, optimizer="clipped"),
        Case("tied", 4, order="zero_bubble_v", num_replicas=2),
    ),
}
# PyTorch's breadth-first schedule adds up the gradients of micro-batches from the last to the
# first, and the emulator from the first to the last whatever the schedule.
REVERSED = ("looped_bfs",)
ALL = [
    pytest.param(count, case, id=f"{count}-{case}")
    for count, cases in CASES.items()
    for case in cases
]
IN_TORCH = [param for param in ALL if param.values[1].optimizer not in OWN_FORMULAS]


def train_all(cases: tuple[Case, ...]) -> list[dict[str, Any]]:
    return [train_exported(case) for case in cases]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a function that trains a case.

    All cases with the same number of processes run together.
    """
    known: dict[int, list[Any]] = {}

    def find(num_processes: int, case: Case) -> list[dict[str, Any]]:
        cases = CASES[num_processes]
        if num_processes not in known:
            folder = tmp_path_factory.mktemp("trained")
            known[num_processes] = run_in_processes(num_processes, train_all, (cases,), folder)
        return [of_rank[cases.index(case)] for of_rank in known[num_processes]]

    return find


@pytest.mark.slow
@pytest.mark.parametrize(("num_processes", "case"), ALL)
def test_exported_pipeline_when_trained_then_losses_and_weights_are_the_emulators(
    trained: Any, num_processes: int, case: Case
) -> None:
    results = trained(num_processes, case)
    losses, state = train_on_emulator(case)
    assert_near(torch.tensor(losses_of(results)), torch.tensor(losses), "losses")
    weights = weights_of(results)
    assert {name for name, _ in weights} == state.keys()
    for name, value in weights:
        assert_near(value, state[name], name)
    for result in results:
        for name, value in result["loaded"].items():
            assert_near(value, state[name], name)


@pytest.mark.slow
@pytest.mark.parametrize(("num_processes", "case"), IN_TORCH)
def test_exported_pipeline_when_trained_then_all_bits_are_plain_pytorchs(
    trained: Any, num_processes: int, case: Case, one_thread: None
) -> None:
    results = trained(num_processes, case)
    losses, state = train_plain(case)
    if case.order in REVERSED:
        # Losses of the first update are equal, because the weights are. Later losses round
        # differently.
        assert losses_of(results)[:NUM_MICRO_BATCHES] == losses[:NUM_MICRO_BATCHES]
        return
    assert losses_of(results) == losses
    for name, value in weights_of(results):
        assert torch.equal(value, state[name]), name


def losses_of(results: list[dict[str, Any]]) -> list[float]:
    """Returns what the rank of the last stage has; for a V that is the first one.

    Replicas follow each other.
    """
    return [loss for result in results for loss in result["losses"]]


def weights_of(results: list[dict[str, Any]]) -> list[tuple[str, torch.Tensor]]:
    """Returns the weights of all stages of all replicas; shared weights occur several times."""
    return [item for each in results for state in each["weights"] for item in state.items()]


@pytest.fixture
def one_thread() -> Any:
    """As many threads as each process has: PyTorch's kernels divide sums among them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def schedule_of(trained: Any, num_processes: int, case: Case) -> str:
    name: str = trained(num_processes, case)[0]["schedule"]
    return name


@pytest.mark.slow
def test_schedule_when_none_is_named_then_the_strategy_decides(trained: Any) -> None:
    by_order = {
        case.order: case
        for case in CASES[2]
        if case.kind is None
        and case.family in ("mlp", "cnn", "transformer")
        and not case.optimizer
        and case.num_replicas == 1
    }
    assert {order: schedule_of(trained, 2, case) for order, case in by_order.items()} == {
        "grouped": "ScheduleInterleaved1F1B",  # Four stages, two in each process.
        "interleaved": "Schedule1F1B",
        "sequential": "OneByOne",
        "gpipe": "ScheduleGPipe",
        "one_f_one_b": "Schedule1F1B",
        "interleaved_1f1b": "ScheduleInterleaved1F1B",
        "looped_bfs": "ScheduleLoopedBFS",
        "zero_bubble_h1": "ScheduleInterleavedZeroBubble",
        "zero_bubble_h2": "_PipelineScheduleRuntime",
        "zero_bubble_v": "ScheduleZBVZeroBubble",
        "dualpipe_v": "ScheduleDualPipeV",
        "late weights": "_PipelineScheduleRuntime",
    }
    names = [schedule_of(trained, 2, case) for case in CASES[2][:6]]
    assert names == [
        *("Schedule1F1B", "ScheduleGPipe", "Schedule1F1B", "OneByOne"),
        *("ScheduleInterleaved1F1B", "OneByOne"),
    ]
