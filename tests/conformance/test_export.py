"""Exported pipelines train as plain PyTorch does, bit for bit, and as the emulator by values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.exported_models import (
    Case,
    run_in_processes,
    train_exported,
    train_on_emulator,
    train_plain,
)
from support.product_sums import assert_alike

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
    ),
    4: (Case("mlp", 4), Case("cnn", 4, "gpipe")),
}
ALL = [
    pytest.param(
        count, case, id=f"{count}-{case.family}-{case.num_stages}-{case.kind}-{case.order}"
    )
    for count, cases in CASES.items()
    for case in cases
]


def train_all(cases: tuple[Case, ...]) -> list[dict[str, Any]]:
    return [train_exported(case) for case in cases]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each process has of each case; all cases of one number of processes run together."""
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
    assert_alike(torch.tensor(results[-1]["losses"]), torch.tensor(losses))
    weights = {key: value for result in results for key, value in result["weights"].items()}
    assert weights.keys() == state.keys()
    for name, value in state.items():
        assert_alike(weights[name], value, name)
    for result in results:
        for name, value in result["loaded"].items():
            assert_alike(value, state[name], name)


@pytest.mark.slow
@pytest.mark.parametrize(("num_processes", "case"), ALL)
def test_exported_pipeline_when_trained_then_all_bits_are_plain_pytorchs(
    trained: Any, num_processes: int, case: Case, one_thread: None
) -> None:
    results = trained(num_processes, case)
    losses, state = train_plain(case)
    assert results[-1]["losses"] == losses
    for result in results:
        for name, value in result["weights"].items():
            assert torch.equal(value, state[name]), name


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
    names = [schedule_of(trained, 2, case) for case in CASES[2][:6]]
    assert names == [
        *("Schedule1F1B", "ScheduleGPipe", "Schedule1F1B", "OneByOne"),
        *("ScheduleInterleaved1F1B", "OneByOne"),
    ]
