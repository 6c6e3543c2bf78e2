"""Random numbers, and train against eval mode (semantics.md §16, §17; api.md §7.5)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch


class Random(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x)


class Dropped(nn.Module):
    """Applies dropout to a weight times its input, so that the gradient shows the mask again."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor):
        y = self.dropout(self.weight * x)
        return y, poptorch.identity_loss(y, "sum")


def options(seed: int | None = 42, iterations: int = 1, replicas: int = 1) -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False).deviceIterations(iterations)
    opts.replicationFactor(replicas)
    return opts if seed is None else opts.randomSeed(seed)


@pytest.mark.feature("Options.randomSeed", fidelity="exact")
def test_seed_when_the_same_then_the_same_numbers_in_each_call() -> None:
    first, second = (poptorch.inferenceModel(Random(), options(7)) for _ in range(2))
    other = poptorch.inferenceModel(Random(), options(8))
    x = torch.zeros(16)
    seen = [(first(x), second(x), other(x)) for _ in range(3)]
    for a, b, c in seen:
        assert torch.equal(a, b) and not torch.equal(a, c)
    assert not torch.equal(seen[0][0], seen[1][0])


@pytest.mark.feature("Options.randomSeed", fidelity="exact")
def test_seed_when_absent_then_not_repeatable() -> None:
    first, second = (poptorch.inferenceModel(Random(), options(None)) for _ in range(2))
    assert not torch.equal(first(torch.zeros(16)), second(torch.zeros(16)))


@pytest.mark.feature("Options.randomSeed", fidelity="exact")
def test_random_seed_then_seeds_pytorch_on_the_host_too() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    poptorch.Options().randomSeed(5)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.feature("Random streams", fidelity="exact")
def test_numbers_then_differ_between_micro_batches_and_replicas() -> None:
    executor = poptorch.inferenceModel(Random(), options(42, iterations=3, replicas=2))
    rows = executor(torch.zeros(6, 8))
    assert len({tuple(row.tolist()) for row in rows}) == 6
    assert 0 <= rows.min() and rows.max() < 1


@pytest.mark.feature("Random streams", fidelity="exact")
def test_manual_seed_in_forward_then_has_no_effect_on_the_device() -> None:
    class Seeding(Random):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.manual_seed(0)
            return super().forward(x)

    plain = poptorch.inferenceModel(Random(), options())
    seeding = poptorch.inferenceModel(Seeding(), options())
    x = torch.zeros(16)
    for _ in range(2):
        assert torch.equal(plain(x), seeding(x))


@pytest.mark.feature("Dropout", fidelity="exact")
def test_dropout_in_training_then_backward_has_the_mask_of_forward() -> None:
    model = Dropped()
    executor = poptorch.trainingModel(model, options(), poptorch.optim.SGD(model.parameters(), 0.5))
    weight = torch.ones(64)
    masks = []
    for _ in range(3):
        y, _ = executor(torch.ones(1))
        mask = (y != 0).float() * 2
        torch.testing.assert_close(y, weight * mask)
        weight = weight - 0.5 * mask
        torch.testing.assert_close(model.weight.detach(), weight)
        masks.append(mask)
        weight = torch.full((64,), 3.0)  # So that a dropped element is the only zero.
        with torch.no_grad():
            model.weight.copy_(weight)
        executor.copyWeightsToDevice()
    assert not torch.equal(masks[0], masks[1])
    assert 16 < (masks[0] != 0).sum() < 48


@pytest.mark.feature("Train and eval", fidelity="exact")
def test_mode_of_modules_when_compiled_then_is_fixed() -> None:
    model = Dropped().eval()
    executor = poptorch.inferenceModel(model, options())
    assert torch.equal(executor(torch.ones(1))[0], torch.ones(64))
    model.train()
    model.dropout.train()
    assert torch.equal(executor(torch.ones(1))[0], torch.ones(64))
    executor.destroy()
    assert (executor(torch.ones(1))[0] == 0).any()


@pytest.mark.feature("Train and eval", fidelity="exact")
@pytest.mark.parametrize("is_training", [True, False])
def test_wrapping_then_does_not_change_the_mode(is_training: bool) -> None:
    model = Dropped()
    model.train(not is_training)
    wrap = poptorch.trainingModel if is_training else poptorch.inferenceModel
    executor = wrap(model, options())
    y, _ = executor(torch.ones(1))
    assert model.training is not is_training
    assert bool((y == 0).any()) is not is_training
