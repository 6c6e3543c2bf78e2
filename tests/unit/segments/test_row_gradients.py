"""Which gradients are added row by row, and that it changes no bit of the training."""

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

ROWS, WIDTH, BATCH = 50, 4, 3


class Bag(nn.Module):
    """Means of embeddings; `twice` looks up in the same table again."""

    def __init__(self, *, twice=False, **options):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(ROWS, WIDTH, **options)
        self.head = nn.Linear(WIDTH, 2)
        self.twice = twice

    def forward(self, words):
        x = self.table(words)
        if self.twice:
            x = x + self.table(words.flip(1))
        loss = self.head(x.mean(dim=1)).square().sum()
        return loss, poptorch.identity_loss(loss, "sum")


def train(model, *, make_optimizer=torch.optim.SGD, anchors=False, **settings):
    """Returns the table after some updates, and the listing of the program."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    options.deviceIterations(2)
    if anchors:
        options.anchorTensor("gradient", "Gradient___table.weight")
    for name, value in settings.items():
        getattr(options, name)(value)
    optimizer = make_optimizer(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    generator = torch.Generator().manual_seed(1)
    replicas = settings.get("replicationFactor", 1)
    for _ in range(3):
        training(torch.randint(ROWS, (BATCH * 4 * replicas, 5), generator=generator))
    text = str(training._executable.program)
    training.destroy()
    return model.table.weight.detach(), text


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_training_when_the_gradient_is_anchored_too_then_bits_are_the_same(name, padding):
    make_optimizer = getattr(torch.optim, name)
    by_rows, text = train(Bag(padding_idx=padding), make_optimizer=make_optimizer)
    dense, anchored = train(Bag(padding_idx=padding), make_optimizer=make_optimizer, anchors=True)
    assert "of accumulator table.weight" in text
    assert "embedding_dense_backward" not in text
    assert "embedding_dense_backward" in anchored
    assert torch.equal(by_rows, dense)


def half_sums(parameters, **settings):
    return poptorch.optim.SGD(parameters, accum_type=torch.float16, **settings)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (Bag(twice=True), {}),
        (Bag(scale_grad_by_freq=True), {}),
        (Bag().half(), {}),
        (Bag(), {"make_optimizer": half_sums}),
    ],
    ids=["used twice", "scaled by frequency", "half weights", "half sums"],
)
def test_gradient_when_it_is_no_plain_sum_of_rows_then_stays_dense(model, settings):
    _, text = train(model, **settings)
    assert "embedding_dense_backward" in text
    assert " -> rows " not in text
