"""Gradients that their products add to the sum, without a change of the training."""

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import _C

WIDTH, ROWS, ACCUMULATION, ITERATIONS = 16, 8, 4, 5


class Model(nn.Module):
    """Three layers, the second twice if asked; the first is in a block of its own."""

    def __init__(self, *, twice=False, ipu=0, width=WIDTH):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, width)
        self.second = nn.Linear(width, width)
        self.conv = nn.Conv1d(1, 1, 3)
        self.times = 2 if twice else 1
        self.ipu = ipu

    def forward(self, x):
        with poptorch.Block("first", ipu_id=0):
            x = torch.tanh(self.first(x))
        with poptorch.Block("second", ipu_id=self.ipu):
            for _ in range(self.times):
                x = torch.tanh(self.second(x))
            loss = self.conv(x.unsqueeze(1)).square().mean()
            return loss, poptorch.identity_loss(loss, "none")


def data(rows=ROWS, replicas=1):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows * ACCUMULATION * ITERATIONS * replicas, WIDTH, generator=generator)


def train(
    model, *, rows=ROWS, accum_type=torch.float32, prepare=lambda options: None, replicas=1, lr=0.1
):
    """Returns the trained weights, and the listing of the program."""
    options = poptorch.Options().deviceIterations(ITERATIONS).replicationFactor(replicas)
    options.Training.gradientAccumulation(ACCUMULATION)
    prepare(options)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=lr, accum_type=accum_type)
    training = poptorch.trainingModel(model, options, optimizer)
    training(data(rows, replicas))
    text = str(training._executable.program)
    training.destroy()
    return [parameter.detach() for parameter in model.parameters()], text


def plain(model, rows=ROWS, lr=0.1):
    """Returns the weights after the same updates in plain PyTorch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for index, x in enumerate(data(rows).split(rows), start=1):
        (model(x)[1] / ACCUMULATION).backward()
        if index % ACCUMULATION == 0:
            optimizer.step()
            optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def products_of(text):
    """Returns the names of the sums that products are added to as they are computed."""
    lines = [line.split() for line in text.splitlines() if "add_product" in line]
    return {line[line.index("accumulator") + 1] for line in lines}


@pytest.mark.parametrize("rows", [2, ROWS, 500])
def test_training_when_layers_are_linear_then_their_gradients_are_added_as_products(rows):
    weights, text = train(Model(), rows=rows)
    assert products_of(text) == {"first.weight", "second.weight"}
    torch.testing.assert_close(weights, plain(Model(), rows), rtol=1e-5, atol=1e-6)


def test_gradient_when_a_weight_is_used_twice_then_is_no_product():
    assert products_of(train(Model(twice=True))[1]) == {"first.weight"}


def test_gradient_of_a_single_row_then_is_added_by_kernels_of_ours_alone():
    weights, text = train(Model(), rows=1)
    # The library's kernel for a single row has other roundings than a product and an addition.
    has_vectors = _C.vector_width() > 0
    assert products_of(text) == ({"first.weight", "second.weight"} if has_vectors else set())
    torch.testing.assert_close(weights, plain(Model(), 1), rtol=1e-5, atol=1e-6)


def anchor(options):
    options.anchorTensor("anchored", "Gradient___first.weight")


def check_exceptions(options):
    options.Precision.enableFloatingPointExceptions(True)


def mean(options):
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(
        poptorch.MeanReductionStrategy.Running
    )


@pytest.mark.parametrize(
    ("prepare", "accum_type", "expected"),
    [
        (anchor, torch.float32, {"second.weight"}),
        (check_exceptions, torch.float32, set()),
        (mean, torch.float32, set()),
        (lambda options: None, torch.float16, set()),
    ],
    ids=["anchored", "floating point is checked", "running mean", "half sums"],
)
def test_gradient_when_its_sum_is_another_then_is_no_product(prepare, accum_type, expected):
    _, text = train(Model(), prepare=prepare, accum_type=accum_type)
    assert products_of(text) == expected


def remote(options):
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    location.minElementsForOffChip(1)
    options.TensorLocations.setAccumulatorLocation(location)


@pytest.mark.parametrize("ipu", [0, 1])
@pytest.mark.parametrize("prepare", [remote, lambda options: None], ids=["remote", "on chip"])
def test_training_when_placed_otherwise_then_has_the_same_bits(ipu, prepare):
    expected, _ = train(Model(), rows=500)
    weights, text = train(Model(ipu=ipu), rows=500, prepare=prepare)
    assert products_of(text) == {"first.weight", "second.weight"}
    assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))


WIDE = 256


def sharded(options):
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    location.minElementsForReplicatedTensorSharding(2)
    options.TensorLocations.setOptimizerLocation(location).setAccumulatorLocation(location)


def test_gradient_when_it_is_large_and_somebody_reads_it_then_has_the_same_bits():
    def anchor_second(options):
        options.anchorTensor("anchored", "Gradient___second.weight")

    # With this rate, weights move by some hundredths, so that the last bits of gradients matter.
    weights, text = train(Model(width=WIDE), rows=64, lr=1.0)
    assert products_of(text) == {"first.weight", "second.weight"}
    assert "-> accumulator second.weight" not in text
    anchored, text = train(Model(width=WIDE), rows=64, lr=1.0, prepare=anchor_second)
    assert products_of(text) == {"first.weight"} and "-> accumulator second.weight" in text
    assert all(torch.equal(a, b) for a, b in zip(weights, anchored, strict=True))
    second, before = weights[2], Model(width=WIDE).second.weight.detach()
    assert (second - before).norm() > 1e-2 * before.norm()
    torch.testing.assert_close(weights, plain(Model(width=WIDE), 64, 1.0), rtol=1e-3, atol=1e-5)


def test_training_when_sums_are_shared_out_then_has_close_weights():
    whole, _ = train(Model(width=WIDE), rows=64, replicas=2, lr=1.0)
    weights, text = train(Model(width=WIDE), rows=64, replicas=2, lr=1.0, prepare=sharded)
    assert products_of(text) == set()
    torch.testing.assert_close(weights, whole, rtol=1e-3, atol=1e-5)


def test_training_when_a_program_is_stored_then_adds_products_again(tmp_path):
    weights, _ = train(
        Model(), prepare=lambda options: options.enableExecutableCaching(str(tmp_path))
    )
    again, text = train(
        Model(), prepare=lambda options: options.enableExecutableCaching(str(tmp_path))
    )
    assert products_of(text) == {"first.weight", "second.weight"}
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))
