"""Channels-last images in the engine: the same numbers, and no visible effect outside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.engine.layout import channels_last

LAYOUT = "poptorch_emu::channels_last"
X = (4, 6, 8, 10)


@pytest.mark.parametrize("shape", [X, (2, 1, 4, 4), (2, 3, 1, 1), (1, 1, 1, 1), (0, 2, 3, 3)])
def test_channels_last_keeps_the_values_and_says_the_layout_by_strides(shape):
    x = torch.randn(shape)
    _, channels, height, width = shape
    result = torch.ops.poptorch_emu.channels_last(x)
    assert torch.equal(result, x)
    assert result.stride() == (height * width * channels, 1, width * channels, channels)
    again = torch.ops.poptorch_emu.channels_last(result)
    assert again.data_ptr() == result.data_ptr()


def test_channels_last_on_other_shapes_is_an_error():
    with pytest.raises(ValueError, match=r"shape \[2, 3\]; expected \(batch, channels, height"):
        torch.ops.poptorch_emu.channels_last(torch.ones(2, 3))


class Joined(nn.Module):
    """Two branches of convolutions, joined by their channels and by a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(6, 4, 3, padding=1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.left(x), self.right(x)
        return torch.cat([left, right, left * right], 1)


class Viewed(nn.Module):
    """Views, transposes and reductions of a convolution's result."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(6, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        rows = y.view(y.shape[0], -1)
        tokens = y.flatten(2).transpose(1, 2)
        return (
            rows.cumsum(1) + tokens.softmax(-1).reshape(rows.shape) + y.mean((2, 3)).sum(1)[:, None]
        )


class Scaled(nn.Module):
    """A convolution whose result is scaled by channel, by pixel and by a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.channel = nn.Parameter(torch.randn(1, 6, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return nn.functional.gelu(y * self.channel + x) * torch.arange(10.0)


class Residual(nn.Module):
    """Four convolutions with batch norms, two of them with a way around."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(6, 8), (8, 8), (8, 8), (8, 4)]
        self.convolutions = nn.ModuleList(nn.Conv2d(*size, 3, padding=1) for size in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for _, size in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        around = None
        for index, (convolution, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True)
        ):
            x = norm(convolution(x))
            x = nn.functional.relu(x if index != 2 else x + around)
            around = x if index == 0 else around
        return x


BODIES: dict[str, Callable[[], nn.Module]] = {
    "pooled": lambda: nn.Sequential(
        nn.Conv2d(6, 5, 3), nn.MaxPool2d(2), nn.ReLU(), nn.AvgPool2d(2)
    ),
    "normed": lambda: nn.Sequential(
        nn.Conv2d(6, 5, 3), nn.BatchNorm2d(5), nn.SiLU(), nn.Conv2d(5, 3, 1)
    ),
    "one channel": lambda: nn.Sequential(nn.Conv2d(6, 1, 1), nn.Conv2d(1, 3, 5), nn.MaxPool2d(2)),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(6, 3, 2, 2), nn.Hardtanh()),
    "enlarged": lambda: nn.Sequential(
        nn.Conv2d(6, 3, 1), nn.Upsample(scale_factor=2), nn.Conv2d(3, 2, 3)
    ),
    "joined": Joined,
    "viewed": Viewed,
    "residual": Residual,
    "scaled": Scaled,
    "in one dimension": lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(6, 4, 3), nn.MaxPool1d(2)),
    "in three dimensions": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv3d(2, 3, 3)),
}


class Trained(nn.Module):
    """Returns a body's result, with the mean of its squares as the loss."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.body(x)
        return y, poptorch.identity_loss(y * y, reduction="mean")


def made(name: str) -> Trained:
    torch.manual_seed(0)
    return Trained(BODIES[name]())


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(channels_last, "_pays", bool)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", BODIES)
def test_training_on_images_equals_the_plain_loop(name):
    x = torch.randn(8, *X[1:])
    plain, emulated = made(name), made(name)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    options.outputMode(poptorch.OutputMode.All)
    training = poptorch.trainingModel(
        emulated, options, torch.optim.SGD(emulated.parameters(), lr=0.1)
    )
    for _ in range(2):
        outputs = []
        optimizer.zero_grad()
        for part in x.split(4):
            y, loss = plain(part)
            (loss / 2).backward()
            outputs.append(y.detach())
        optimizer.step()
        y, _ = training(x)
        torch.testing.assert_close(y, torch.cat(outputs), rtol=1e-4, atol=1e-5)
        assert y.is_contiguous()
    for ours, theirs in zip(emulated.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    is_flat = not any(isinstance(part, (nn.Conv2d, nn.ConvTranspose2d)) for part in plain.modules())
    assert (LAYOUT in training._executable.program.text()) is not is_flat


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", ["pooled", "normed", "viewed"])
def test_inference_gives_contiguous_images(name):
    model = made(name).body.eval()
    x = torch.randn(4, *X[1:])
    for mode in (poptorch.OutputMode.All, poptorch.OutputMode.Final):
        options = poptorch.Options()
        options.outputMode(mode)
        result = poptorch.inferenceModel(model, options)(x)
        assert result.is_contiguous()
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)


class Staged(nn.Module):
    """A small residual network; `split` says whether each part has a virtual IPU of its own."""

    def __init__(self, split: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.split = split
        self.parts = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU()),
                nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.MaxPool2d(2), nn.SiLU()),
                nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Dropout(0.2), nn.Flatten()),
                nn.Linear(32, 5),
            ]
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for index, part in enumerate(self.parts):
            with poptorch.Block(ipu_id=index if self.split else 0):
                x = part(x)
                loss = nn.functional.cross_entropy(x, labels) if index == 3 else None
        return x, loss


def weights_after(split: bool, change: Callable[[poptorch.Options], object]) -> list[torch.Tensor]:
    model = Staged(split)
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    options.randomSeed(7)
    change(options)
    training = poptorch.trainingModel(model, options, torch.optim.AdamW(model.parameters()))
    torch.manual_seed(1)
    for _ in range(2):
        training(torch.randn(16, 3, 8, 8), torch.randint(5, (16,)))
    return [value.detach().clone() for value in model.state_dict().values()]


def offload(options: poptorch.Options) -> None:
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setActivationLocation(location.minElementsForOffChip(0))


CHANGES: dict[str, Callable[[poptorch.Options], object]] = {
    "recomputing": lambda options: emulator.set_recomputation(options, "executed"),
    "offloaded": offload,
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("change", CHANGES)
def test_images_that_cross_have_the_bits_of_those_that_stay(change):
    expected = weights_after(False, lambda options: None)
    for ours, theirs in zip(weights_after(True, CHANGES[change]), expected, strict=True):
        assert torch.equal(ours, theirs)


# Whether a model's images lie channels last in training and in inference.
CHOICES = {
    "pooled": (True, True),
    "normed": (False, True),
    "residual": (True, True),
    "viewed": (False, False),
    "in one dimension": (False, False),
}


@pytest.mark.parametrize("name", CHOICES)
def test_channels_last_is_chosen_where_it_pays(name):
    x = torch.randn(4, *X[1:])
    model = made(name)
    training = poptorch.trainingModel(model, None, poptorch.optim.SGD(model.parameters(), lr=0.1))
    training.compile(x)
    inference = poptorch.inferenceModel(made(name).body.eval())
    inference.compile(x)
    found = tuple(LAYOUT in each._executable.program.text() for each in (training, inference))
    assert found == CHOICES[name]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_maximum_poolings_note_indices_for_gradients_alone(dtype):
    x = torch.randn(4, *X[1:]).to(dtype)
    model = made("pooled").to(dtype)
    training = poptorch.trainingModel(model, None, poptorch.optim.SGD(model.parameters(), lr=0.1))
    training.compile(x)
    inference = poptorch.inferenceModel(made("pooled").body.to(dtype).eval())
    inference.compile(x)
    trained, inferred = (each._executable.program.text() for each in (training, inference))
    assert "poptorch_emu::image_max_pool_with_indices(" in trained
    assert "poptorch_emu::image_max_pool(" in inferred
    assert "aten::max_pool2d_with_indices(" not in trained + inferred


def trained_weights(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Returns the weights of a model's body after some updates in plain PyTorch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for part in x.split(8):
        optimizer.zero_grad()
        model(part)[1].backward()
        optimizer.step()
    return [value.detach() for value in model.parameters()]


def test_batch_norms_in_training_stay_as_near_to_double_precision_as_eager():
    x = 2 * torch.randn(20 * 8, *X[1:]) + 1
    exact = trained_weights(made("residual").double(), x.double())
    eager = trained_weights(made("residual"), x)
    model = made("residual")
    options = poptorch.Options().deviceIterations(20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    training(x)
    assert "poptorch_emu::image_batch_norm_backward" in training._executable.program.text()

    def distance(weights: list[torch.Tensor]) -> float:
        pairs = zip(weights, exact, strict=True)
        return sum((ours.double() - theirs).abs().sum().item() for ours, theirs in pairs)

    assert distance([value.detach() for value in model.parameters()]) < 2 * distance(eager)


def residual_weights(**places: object) -> list[torch.Tensor]:
    """Returns the weights after updates with clipped gradients; `places` are set on the options."""
    model = made("residual")
    options = poptorch.Options().deviceIterations(3)
    options.Training.gradientAccumulation(4)
    for setter, location in places.items():
        getattr(options.TensorLocations, setter)(location)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, max_grad_norm=0.01)
    training = poptorch.trainingModel(model, options, optimizer)
    torch.manual_seed(1)
    training(torch.randn(8 * 3 * 4, *X[1:]))
    assert "image_batch_norm_backward" in training._executable.program.text()
    return [value.detach() for value in model.parameters()]


@pytest.mark.parametrize("setter", ["setAccumulatorLocation", "setWeightLocation"])
def test_gradients_and_weights_off_chip_have_the_bits_of_those_on_chip(setter):
    location = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(1)
    pairs = zip(residual_weights(**{setter: location}), residual_weights(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_weights_that_the_host_changes_reach_the_next_call():
    model = made("residual")
    training = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.0))
    x = torch.randn(4, *X[1:])
    training(x)
    text = training._executable.program.text()
    assert text.count("of prepare body.convolutions.1.weight\n") == 2
    # Only the preparation and the update read the weight in its original layout.
    assert text.count("= variable body.convolutions.1.weight\n") == 2
    other = made("residual")
    with torch.no_grad():
        for value, source in zip(model.parameters(), other.parameters(), strict=True):
            value.copy_(-source)
            source.neg_()
    training.copyWeightsToDevice()
    torch.testing.assert_close(training(x)[0], other(x)[0].detach(), rtol=1e-4, atol=1e-5)


def test_stochastic_rounding_leaves_the_layout_as_it_is():
    model = made("pooled").half()
    options = poptorch.Options()
    options.Precision.enableStochasticRounding(True)
    training = poptorch.trainingModel(
        model, options, poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    training.compile(torch.randn(4, *X[1:]).half())
    assert LAYOUT not in training._executable.program.text()
