"""Random numbers inside a model (semantics §16, §17): distributions, seeds, streams, dropout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.models import FAMILIES
from support.small_models import Function, options, run
from torch import nn

import poptorch_emu as poptorch

scipy_stats = pytest.importorskip("scipy.stats")

pytestmark = pytest.mark.feature("Random numbers", fidelity="exact")

SIZE = 20_000
# With a fixed seed a test either passes or fails forever. A fair generator fails one in a million.
SMALLEST_P = 1e-6

_CONTINUOUS = {
    "rand": (lambda x: torch.rand_like(x), scipy_stats.uniform()),
    "uniform_": (lambda x: x.clone().uniform_(-2, 3), scipy_stats.uniform(-2, 5)),
    "randn": (lambda x: torch.randn(SIZE, device=x.device) + x * 0, scipy_stats.norm()),
    "rand without generator": (
        lambda x: torch.rand(SIZE, generator=None, device=x.device) + x * 0,
        scipy_stats.uniform(),
    ),
    "randn without generator": (
        lambda x: torch.randn(SIZE, generator=None, device=x.device) + x * 0,
        scipy_stats.norm(),
    ),
    "normal_": (lambda x: x.clone().normal_(1.5, 0.3), scipy_stats.norm(1.5, 0.3)),
    "exponential_": (lambda x: x.clone().exponential_(2.0), scipy_stats.expon(scale=0.5)),
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", _CONTINUOUS)
def test_draws_when_tested_then_follow_their_distribution(name: str, seed: int) -> None:
    """The test of Kolmogorov and Smirnov against the exact distribution function."""
    function, distribution = _CONTINUOUS[name]
    draws = run(function, torch.zeros(SIZE), opts=options(seed=seed))
    assert scipy_stats.kstest(draws.double().numpy(), distribution.cdf).pvalue > SMALLEST_P


@pytest.mark.parametrize("seed", [1, 2])
def test_micro_batches_when_drawn_then_are_one_uniform_and_independent(seed: int) -> None:
    model = poptorch.inferenceModel(
        Function(lambda x: torch.rand_like(x)), options(iterations=10, seed=seed)
    )
    draws = torch.cat([model(torch.zeros(10, 1000)) for _ in range(2)]).double()
    assert scipy_stats.kstest(draws.flatten().numpy(), "uniform").pvalue > SMALLEST_P
    correlation = torch.corrcoef(draws) - torch.eye(20, dtype=torch.float64)
    assert correlation.abs().max() < 5 / 1000**0.5


_DISCRETE = {
    "bernoulli": (lambda x: torch.bernoulli(x + 0.3), [0.7, 0.3]),
    "bernoulli_": (lambda x: x.clone().bernoulli_(0.8), [0.2, 0.8]),
    "randint": (lambda x: torch.randint(0, 4, (SIZE,), device=x.device) + x * 0, [0.25] * 4),
    "randint without generator": (
        lambda x: torch.randint(4, (SIZE,), generator=None, device=x.device) + x * 0,
        [0.25] * 4,
    ),
    "randint from a low bound without generator": (
        lambda x: torch.randint(0, 4, (SIZE,), generator=None, device=x.device) + x * 0,
        [0.25] * 4,
    ),
    "random_": (lambda x: x.clone().random_(0, 3), [1 / 3] * 3),
    "dropout": (lambda x: F.dropout(x + 1, 0.25, True).sign(), [0.25, 0.75]),
}


@pytest.mark.parametrize("name", _DISCRETE)
def test_counts_when_drawn_then_follow_their_probabilities(name: str) -> None:
    function, probabilities = _DISCRETE[name]
    draws = run(function, torch.zeros(SIZE), opts=options())
    counts = torch.bincount(draws.long(), minlength=len(probabilities)).numpy()
    expected = [SIZE * p for p in probabilities]
    assert counts.sum() == SIZE and len(counts) == len(probabilities)
    assert scipy_stats.chisquare(counts, expected).pvalue > SMALLEST_P


def test_randperm_when_drawn_then_is_a_permutation_of_every_order_alike() -> None:
    model = poptorch.inferenceModel(
        Function(lambda x: torch.randperm(3, device=x.device) + 0 * x.long()),
        options(iterations=1200),
    )
    orders = model(torch.zeros(3600)).reshape(1200, 3)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(3).expand(1200, 3).int())
    counts = torch.bincount(orders[:, 0] * 3 + orders[:, 1], minlength=9)
    assert scipy_stats.chisquare(counts[counts > 0].numpy()).pvalue > SMALLEST_P
    assert (counts > 0).sum() == 6


def _losses(model: nn.Module, opts: poptorch.Options, batches: list) -> list[torch.Tensor]:
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), 0.05))
    losses = [training(*batch)[1] for batch in batches]
    training.destroy()
    return losses


class Dropping(nn.Module):
    """A model whose loss depends on dropout, over two IPUs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = FAMILIES["mlp"].make(2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        return self.inner(F.dropout(x, 0.5, self.training), labels)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_dropout_when_workers_differ_then_bits_are_the_same(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(4)
    batches = [FAMILIES["mlp"].batch(16) for _ in range(3)]
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", str(workers))
    losses = _losses(Dropping(), options(accumulation=4), batches)
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", "1")
    again = _losses(Dropping(), options(accumulation=4), batches)
    assert all(torch.equal(a, b) for a, b in zip(losses, again, strict=True))
    assert not torch.equal(*_losses(Dropping(), options(accumulation=4), [batches[0]] * 2))


def test_dropout_when_differentiated_then_backward_has_the_mask_of_forward() -> None:
    weight = torch.ones(SIZE)
    model = Function(lambda x, w: _dropped(w * x), weight)
    training = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), 1.0))
    kept, _ = training(torch.ones(1))
    training.destroy()
    torch.testing.assert_close(1.0 - model.weights[0].detach(), kept, rtol=1e-6, atol=0)
    assert abs((kept > 0).float().mean().item() - 0.6) < 0.02


def _dropped(x: torch.Tensor):
    y = F.dropout(x, 0.4, True)
    return y, poptorch.identity_loss(y, "sum")


def test_replicas_when_they_draw_then_have_streams_of_their_own() -> None:
    opts = options()
    opts.replicationFactor(2)
    draws = poptorch.inferenceModel(Function(lambda x: torch.rand_like(x)), opts)(
        torch.zeros(2, 1000)
    )
    assert not torch.equal(draws[0], draws[1])
    assert abs(torch.corrcoef(draws)[0, 1].item()) < 5 / 1000**0.5


def test_seed_when_set_then_repeats_and_seeds_torch_too() -> None:
    first = run(lambda x: torch.rand_like(x), torch.zeros(100), opts=options(seed=9))
    on_host = torch.rand(4)
    second = run(lambda x: torch.rand_like(x), torch.zeros(100), opts=options(seed=9))
    assert torch.equal(first, second) and torch.equal(on_host, torch.rand(4))
    other = run(lambda x: torch.rand_like(x), torch.zeros(100), opts=options(seed=10))
    assert not torch.equal(first, other)


def test_seed_when_not_set_then_runs_differ() -> None:
    opts = poptorch.Options()
    opts.showCompilationProgressBar(False)
    draws = [run(lambda x: torch.rand_like(x), torch.zeros(8), opts=opts.clone()) for _ in "ab"]
    assert not torch.equal(*draws)


def test_manual_seed_when_called_inside_forward_then_has_no_effect() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return torch.rand_like(x)

    model = poptorch.inferenceModel(Function(forward), options())
    assert not torch.equal(model(torch.zeros(8)), model(torch.zeros(8)))


def test_rng_state_when_restored_then_draws_repeat() -> None:
    model = poptorch.inferenceModel(Function(lambda x: torch.rand_like(x)), options())
    model(torch.zeros(8))
    state = model.rng_state
    first = model(torch.zeros(8))
    model.rng_state = state
    assert torch.equal(first, model(torch.zeros(8)))


def test_feature_dropout_when_drawn_then_drops_whole_channels() -> None:
    result = run(lambda x: F.dropout2d(x, 0.5, True), torch.ones(50, 20, 3, 3))
    channels = result.reshape(1000, 9)
    assert (channels == channels[:, :1]).all()
    assert set(channels.unique().tolist()) == {0.0, 2.0}
