"""Gradients that are added row by row, with the same bits in training."""

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


def train(model, *, make_optimizer=torch.optim.SGD, anchor="", checks=False, **settings):
    """Returns the table after some updates, and the listing of the program."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    options.deviceIterations(2)
    if anchor:
        options.anchorTensor("anchored", anchor)
    for name, value in settings.items():
        getattr(options, name)(value)
    options.Precision.enableFloatingPointExceptions(checks)
    optimizer = make_optimizer(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    generator = torch.Generator().manual_seed(1)
    replicas = settings.get("replicationFactor", 1)
    for _ in range(3):
        training(torch.randint(ROWS, (BATCH * 4 * replicas, 5), generator=generator))
    text = str(training._executable.program)
    training.destroy()
    return model.table.weight.detach(), text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_training_when_the_gradient_is_anchored_too_then_bits_are_the_same(name, padding, dtype):
    make_optimizer = getattr(torch.optim, name)
    by_rows, text = train(Bag(padding_idx=padding).to(dtype), make_optimizer=make_optimizer)
    dense, anchored = train(
        Bag(padding_idx=padding).to(dtype),
        make_optimizer=make_optimizer,
        anchor="Gradient___table.weight",
    )
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
        (Bag(), {"make_optimizer": half_sums}),
    ],
    ids=["used twice", "scaled by frequency", "half sums"],
)
def test_gradient_when_it_is_no_plain_sum_of_rows_then_stays_dense(model, settings):
    _, text = train(model, **settings)
    assert "embedding_dense_backward" in text
    assert " -> rows " not in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_update_when_the_table_is_anchored_too_then_bits_are_the_same(dtype):
    by_rows, text = train(Bag().to(dtype))
    whole, anchored = train(Bag().to(dtype), anchor="UpdatedVar___table.weight")
    assert "touched rows of accumulator table.weight" in text
    assert "touched rows" not in anchored
    assert torch.equal(by_rows, whole)


def test_update_when_each_operation_is_checked_then_rows_are_copied_and_bits_are_the_same():
    in_place, _ = train(Bag())
    copied, text = train(Bag(), checks=True)
    assert text.count("touched rows of variable table.weight") == 2
    assert torch.equal(in_place, copied)


def with_momentum(parameters, **settings):
    return torch.optim.SGD(parameters, momentum=0.9, **settings)


def with_decay(parameters, **settings):
    return torch.optim.SGD(parameters, weight_decay=0.1, **settings)


def clipped(parameters, **settings):
    return poptorch.optim.AdamW(parameters, max_grad_norm=1.0, **settings)


def with_changing_decay(parameters, **settings):
    optimizer = poptorch.optim.SGD(parameters, weight_decay=0.0, **settings)
    optimizer.variable_attrs.markAsVariable("weight_decay")
    return optimizer


@pytest.mark.parametrize(
    "make_optimizer", [with_momentum, with_decay, with_changing_decay, clipped, torch.optim.AdamW]
)
def test_update_when_rows_without_gradient_may_change_then_covers_the_table(make_optimizer):
    _, text = train(Bag(), make_optimizer=make_optimizer)
    assert " -> rows " in text
    assert "touched rows" not in text


def test_training_when_rounded_at_random_then_gradients_stay_dense():
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    options.Precision.enableStochasticRounding(True)
    model = Bag().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    training(torch.randint(ROWS, (BATCH * 2, 5)))
    text = str(training._executable.program)
    assert "embedding_dense_backward" in text
    assert "touched rows" not in text


def test_update_when_replicated_then_covers_the_table():
    _, text = train(Bag(), replicationFactor=2)
    assert " -> rows " in text
    assert "touched rows" not in text
