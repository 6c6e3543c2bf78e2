"""Buffers with several replicas (spec, semantics 8.3 and 17)."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Buffers with replicas", fidelity="exact")

ROWS = 4


class Normed(nn.Module):
    """A linear layer, batch norm over the rows of one micro-batch, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 5)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        x = self.norm(self.linear(x))
        return x, F.cross_entropy(x, labels)


class Counter(nn.Module):
    """Counts micro-batches in a buffer or a parameter, weighted by their inputs."""

    def __init__(self, *, in_parameter: bool = False) -> None:
        super().__init__()
        if in_parameter:
            self.seen = nn.Parameter(torch.zeros(1), requires_grad=False)
        else:
            self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum()
        return self.seen * 1.0


def _options(replicas: int, *, broadcasts: bool = False, accumulation: int = 1):
    options = poptorch.Options()
    options.replicationFactor(replicas).broadcastBuffers(broadcasts)
    options.Training.gradientAccumulation(accumulation)
    options.outputMode(poptorch.OutputMode.All).showCompilationProgressBar(False)
    return options


def _batches(count: int, rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(rows, 3), torch.randint(5, (rows,))) for _ in range(count)]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("replicas", [2, 4])
def test_batch_norm_when_replicated_then_each_replica_has_its_statistics_and_replica_0_is_read(
    replicas: int, accumulation: int
) -> None:
    model = Normed()
    plain = [copy.deepcopy(model) for _ in range(replicas)]
    optimizers = [torch.optim.SGD(replica.parameters(), lr=0.1) for replica in plain]
    training = poptorch.trainingModel(
        model,
        _options(replicas, accumulation=accumulation),
        poptorch.optim.SGD(model.parameters(), lr=0.1),
    )
    per_update = accumulation * replicas
    for x, labels in _batches(4, ROWS * per_update):
        _, losses = training(x, labels)
        expected = []
        for index, (rows, wanted) in enumerate(zip(x.split(ROWS), labels.split(ROWS), strict=True)):
            _, loss = plain[index % replicas](rows, wanted)
            (loss / per_update).backward()
            expected.append(loss.detach())
        torch.testing.assert_close(losses, torch.stack(expected))
        for parameters in zip(*(replica.parameters() for replica in plain), strict=True):
            total = torch.stack([p.grad for p in parameters]).sum(0)
            for parameter in parameters:
                parameter.grad = total.clone()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    training.destroy()
    state = model.state_dict()
    assert not torch.equal(plain[0].norm.running_mean, plain[1].norm.running_mean)
    for name, value in plain[0].state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("in_parameter", [False, True])
def test_in_place_update_when_buffers_are_broadcast_then_refused(in_parameter: bool) -> None:
    model = poptorch.inferenceModel(
        Counter(in_parameter=in_parameter), _options(2, broadcasts=True)
    )
    with pytest.raises(
        poptorch.Error,
        match=r"PopTorch does not support broadcasting buffers.*"
        r"poptorch\.Options\.broadcastBuffers\(False\)",
    ):
        model(torch.ones(2, 1))


def _undecided(replicas: int) -> poptorch.Options:
    """Returns options without a call of `broadcastBuffers`."""
    options = poptorch.Options().replicationFactor(replicas).showCompilationProgressBar(False)
    return options.outputMode(poptorch.OutputMode.All)


def test_in_place_update_when_nobody_decided_then_one_warning_and_as_with_false(
    logged: pytest.LogCaptureFixture,
) -> None:
    model = poptorch.inferenceModel(Counter(), _undecided(2))
    model(torch.tensor([[1.0], [10.0]]))
    torch.testing.assert_close(model(torch.tensor([[2.0], [20.0]])), torch.tensor([3.0, 30.0]))
    assert logged.text.count("PopTorch does not support broadcasting buffers") == 1
    assert "poptorch.Options.broadcastBuffers(False)" in logged.text


def test_in_place_update_when_nobody_decided_and_strict_then_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_STRICT", "error")
    with pytest.raises(poptorch.Error, match="does not support broadcasting buffers"):
        poptorch.inferenceModel(Counter(), _undecided(2))(torch.ones(2, 1))


@pytest.mark.parametrize("replicas", [1, 2])
def test_buffer_when_nothing_is_written_or_shared_then_no_warning(
    replicas: int, logged: pytest.LogCaptureFixture
) -> None:
    model = Normed().eval() if replicas == 2 else Normed()
    x, labels = torch.randn(4, 3), torch.randint(5, (4,))
    poptorch.inferenceModel(model, _undecided(replicas))(x, labels)
    assert "broadcasting buffers" not in logged.text


def test_in_place_update_when_replicas_see_the_same_data_then_allowed() -> None:
    options = _options(2, broadcasts=True)
    options.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    result = poptorch.inferenceModel(Counter(), options)(torch.ones(1, 1))
    torch.testing.assert_close(result, torch.tensor([1.0, 1.0]))


def test_buffer_when_only_read_then_broadcasting_is_allowed() -> None:
    model = Normed().eval()
    x, labels = torch.randn(4, 3), torch.randint(5, (4,))
    result, _ = poptorch.inferenceModel(model, _options(2, broadcasts=True))(x, labels)
    torch.testing.assert_close(result, model(x, labels)[0])


def test_buffer_when_replicated_then_each_replica_counts_on_its_own_between_calls() -> None:
    model = poptorch.inferenceModel(Counter(), _options(2))
    first = model(torch.tensor([[1.0], [10.0]]))
    second = model(torch.tensor([[2.0], [20.0]]))
    torch.testing.assert_close(first, torch.tensor([1.0, 10.0]))
    torch.testing.assert_close(second, torch.tensor([3.0, 30.0]))
    model.copyWeightsToHost()
    assert model.seen.item() == 3.0


def test_buffer_when_the_host_uploads_then_all_replicas_start_from_its_value() -> None:
    model = poptorch.inferenceModel(Counter(), _options(2))
    model(torch.tensor([[1.0], [10.0]]))
    with torch.no_grad():
        model.seen.fill_(100.0)
    model.copyWeightsToDevice()
    result = model(torch.tensor([[1.0], [2.0]]))
    torch.testing.assert_close(result, torch.tensor([101.0, 102.0]))
