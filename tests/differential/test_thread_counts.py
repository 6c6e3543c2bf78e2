"""An LSTM on one virtual IPU, which may use all threads, has the same bits for any number."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import _C

STEPS, BATCH = 64, 16  # With so many rows, products of MKL have other bits on several threads.


class Classifier(torch.nn.Module):
    """The class of a sequence by the last output of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(64, 256, batch_first=True)
        self.head = torch.nn.Linear(256, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.head(self.lstm(x)[0][:, -1]), labels)


@pytest.fixture(autouse=True)
def _threads_of_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    _C.set_shares_work(True)


def trained(num_threads: int, *, shares_work: bool = True) -> list[torch.Tensor]:
    """Returns the weights after eight updates, some on all threads and some on one thread."""
    torch.set_num_threads(num_threads)
    _C.set_shares_work(shares_work)
    torch.manual_seed(1)
    model = Classifier()
    opts = poptorch.Options().showCompilationProgressBar(False).deviceIterations(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    training = poptorch.trainingModel(model, opts, optimizer)
    for _ in range(2):
        training(torch.randn(4 * BATCH, STEPS, 64), torch.randint(10, (4 * BATCH,)))
    assert torch.get_num_threads() == num_threads
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_training_when_threads_differ_then_bits_do_not() -> None:
    expected = trained(1)
    for num_threads, shares_work in itertools.product([2, 3, 4], [True, False]):
        actual = trained(num_threads, shares_work=shares_work)
        assert all(map(torch.equal, actual, expected)), (num_threads, shares_work)
