"""Cross entropies with classes in another dimension: computed by rows, with equal numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rewrites import leave_out
from torch import nn
from torch.nn import functional as F

import poptorch_emu as poptorch
from poptorch_emu.engine.rewrites.cross_entropy import compute_losses_by_rows

BATCH, LENGTH, WIDTH, CLASSES = 8, 6, 5, 7
ACCUMULATION = 4

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Tagger(nn.Module):
    """Scores of classes for each position of a sequence, with a loss of the transposed scores."""

    def __init__(self, loss: Loss, *, is_split: bool = False) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, 12), nn.Linear(12, CLASSES)
        self.loss, self.is_split = loss, is_split

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(torch.tanh(self.first(x)))
        if self.is_split:
            poptorch.Block.useAutoId()
            with poptorch.Block("loss", ipu_id=1):
                return scores, poptorch.identity_loss(self.loss(scores, target), "none")
        return scores, poptorch.identity_loss(self.loss(scores, target), "none")


def turned(**how: object) -> Loss:
    """Returns a cross entropy of scores (batch, length, classes)."""
    return lambda scores, target: F.cross_entropy(scores.transpose(1, 2), target, **how)


def as_images(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    images = scores.unflatten(1, (2, 3)).permute(0, 3, 1, 2)
    return F.cross_entropy(images, target.unflatten(1, (2, 3)))


def of_log_softmax(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Computes a loss that also reads the log-probabilities directly."""
    logs = F.log_softmax(scores.transpose(1, 2), 1)
    return F.nll_loss(logs, target, ignore_index=2) + 0.1 * logs.exp().square().mean()


def through_two_views(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Computes a loss from log-probabilities in the shape of images, through two views."""
    logs = F.log_softmax(scores.transpose(1, 2), 1).unsqueeze(-1).transpose(2, 3)
    return F.nll_loss(logs, target.unsqueeze(1))


WEIGHTS = torch.linspace(0.5, 2.0, CLASSES)
# For each case: the loss, and whether the engine computes it by rows.
LOSSES: dict[str, tuple[Loss, bool]] = {
    "mean": (turned(), True),
    "sum": (turned(reduction="sum"), True),
    "ignored": (turned(ignore_index=3), True),
    "weights": (turned(weight=WEIGHTS), True),
    "smoothed": (turned(label_smoothing=0.1), True),
    "images": (as_images, True),
    "twice": (of_log_softmax, True),
    "views": (through_two_views, False),
    "each": (lambda scores, target: turned(reduction="none")(scores, target).mean(), False),
}


def batch(num_calls: int = 1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = num_calls * ACCUMULATION * BATCH
    return (
        torch.randn(rows, LENGTH, WIDTH, generator=generator),
        torch.randint(CLASSES, (rows, LENGTH), generator=generator),
    )


def trained(model: nn.Module, data: tuple[torch.Tensor, ...]) -> tuple[list[torch.Tensor], str]:
    """Returns outputs and weights after an update, and the text of the program."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    options.outputMode(poptorch.OutputMode.All)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.5))
    outputs = list(training(*data))
    weights = [value.detach().clone() for value in model.state_dict().values()]
    return outputs + weights, training._executable.program.text()


def by_hand(model: Tagger, data: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Returns the outputs and weights of plain PyTorch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    outputs = []
    for x, target in zip(*(each.chunk(ACCUMULATION) for each in data), strict=True):
        scores = model.head(torch.tanh(model.first(x)))
        loss = model.loss(scores, target)
        (loss / ACCUMULATION).backward()
        outputs.append((scores.detach(), loss.detach()))
    optimizer.step()
    scores, losses = zip(*outputs, strict=True)
    weights = [value.detach() for value in model.state_dict().values()]
    return [torch.cat(scores), torch.stack(losses), *weights]


@pytest.mark.parametrize("name", LOSSES)
def test_loss_of_turned_scores_then_has_the_numbers_of_pytorch(name: str) -> None:
    loss, is_by_rows = LOSSES[name]
    torch.manual_seed(0)
    model = Tagger(loss)
    expected = by_hand(copy.deepcopy(model), batch())
    found, text = trained(model, batch())
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert ("::nll_loss_forward(" in text, "::nll_loss_backward(" in text) == (is_by_rows,) * 2
    assert ("::nll_loss2d_forward(" in text) is not is_by_rows


@pytest.mark.parametrize("name", LOSSES)
def test_loss_when_on_another_stage_then_has_the_same_bits(name: str) -> None:
    results = []
    for is_split in (False, True):
        torch.manual_seed(0)
        results.append(trained(Tagger(LOSSES[name][0], is_split=is_split), batch())[0])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_loss_of_turned_scores_then_no_logarithm_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = trained(Tagger(turned()), batch())
    with monkeypatch.context() as patched:
        leave_out(patched, compute_losses_by_rows)
        _, plain = trained(Tagger(turned()), batch())
    assert "nll_loss2d" in plain
    assert text.count("::clone(") <= plain.count("::clone(")
    # Backward requests a contiguous gradient, which copies only a gradient in another order.
    backward = text[text.index("backward 0") :]
    assert "::contiguous(" in backward


def test_softmax_of_scores_in_order_then_stays_as_it_is() -> None:
    def loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        images = torch.tanh(scores.transpose(1, 2).contiguous())
        return F.cross_entropy(images, target)

    _, text = trained(Tagger(loss), batch())
    assert "::nll_loss2d_forward(" in text


def test_loss_when_every_target_is_ignored_then_is_zero() -> None:
    x, target = batch()
    found, _ = trained(Tagger(turned(ignore_index=4)), (x, torch.full_like(target, 4)))
    assert torch.equal(found[1], torch.zeros(ACCUMULATION))


@settings(max_examples=25)
@given(
    st.sampled_from(["mean", "sum"]), st.integers(-1, CLASSES), st.booleans(), st.integers(0, 999)
)
def test_loss_of_any_kind_then_has_the_numbers_of_pytorch(
    reduction: str, ignored: int, has_weights: bool, seed: int
) -> None:
    loss = turned(
        reduction=reduction,
        ignore_index=ignored,
        weight=WEIGHTS if has_weights else None,
    )
    torch.manual_seed(seed)
    model = Tagger(loss)
    expected = by_hand(copy.deepcopy(model), batch(seed=seed))
    found, _ = trained(model, batch(seed=seed))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=5e-6)
