"""Numbers of workers and threads for a model, and the order of their work."""

from __future__ import annotations

import os

import pytest
import torch
from support.joining import join

import poptorch_emu as poptorch
from poptorch_emu.errors import Error
from poptorch_emu.runtime.threads import thread_counts


@pytest.mark.parametrize(
    ("ipus", "independent", "has_network", "expected"),
    [
        (1, 1, False, (1, "all")),
        (1, 3, False, (1, "all")),
        (1, 4, False, (4, 1)),
        (2, 1, False, (2, 1)),
        (2, 3, False, (3, 1)),
        (8, 16, False, (4, 1)),
        (1, 1, True, (2, 1)),
    ],
)
def test_threads_on_four_cores_then_keep_them_busy(
    ipus: int,
    independent: int,
    has_network: bool,
    expected: tuple[int, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("POPTORCH_EMU_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(4)))
    workers, threads = expected
    found = thread_counts(ipus, independent, has_network=has_network)
    assert found == (workers, torch.get_num_threads() if threads == "all" else threads)


def test_threads_when_a_number_of_workers_is_asked_for_then_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", "2")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(4)))
    assert thread_counts(4, 8) == (2, 1)


class Stages(torch.nn.Module):
    """Two stages of a pipeline, with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = poptorch.BeginBlock(torch.nn.Linear(8, 16), ipu_id=0)
        self.second = poptorch.BeginBlock(torch.nn.Linear(16, 4), ipu_id=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.second(torch.tanh(self.first(x)))
        return out, torch.nn.functional.mse_loss(out, y)


def trained(batch: tuple[torch.Tensor, ...]) -> tuple[list[torch.Tensor], list[int]]:
    """Returns outputs and weights after two calls, and the maximum number of items in each link."""
    torch.manual_seed(0)
    options = poptorch.Options()
    options.Training.gradientAccumulation(6)
    model = Stages()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, options, optimizer)
    results = [value for _ in range(2) for value in training(*batch)]
    results += [value.clone() for value in model.state_dict().values()]
    return results, [items for items, _ in training._session._executor.link_peaks()]


def test_order_when_it_is_the_schedules_then_links_fill_and_the_bits_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    join(monkeypatch, 1)  # A link holds single micro-batches then.
    batch = (torch.randn(12, 8), torch.randn(12, 4))
    monkeypatch.delenv("POPTORCH_EMU_ORDER", raising=False)
    by_micro_batches, idle = trained(batch)
    monkeypatch.setenv("POPTORCH_EMU_ORDER", "schedule")
    by_schedule, filled = trained(batch)
    assert max(idle) == 0 and max(filled) == 3
    for one, other in zip(by_micro_batches, by_schedule, strict=True):
        assert torch.equal(one, other)


def test_order_when_it_is_unknown_then_the_error_names_those_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_ORDER", "fastest")
    with pytest.raises(Error, match=r"POPTORCH_EMU_ORDER must be one of .*schedule.*fastest"):
        trained((torch.randn(12, 8), torch.randn(12, 4)))
