"""Linear layers with packed weights: plain PyTorch's numbers, whoever runs them and wherever."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.engine import onednn
from poptorch_emu.engine.rewrites import packed_linear
from poptorch_emu.engine.rewrites.linear_layer import LinearLayer
from poptorch_emu.engine.rewrites.packed_weights import has_library

LAYER = "mkldnn::_linear_pointwise"
OUR_LAYER = "poptorch_emu::packed_linear("
PACK = "mkldnn::_reorder_linear_weight"
OUR_PACK = "poptorch_emu::pack_weight("
BATCH = 8

pytestmark = pytest.mark.skipif(not onednn.IS_AVAILABLE, reason="this PyTorch has no oneDNN")
needs_library = pytest.mark.skipif(not has_library(), reason="this PyTorch has no MKL")


@pytest.fixture
def always(monkeypatch):
    """Has oneDNN pack layers of any size."""
    monkeypatch.setattr(packed_linear, "is_onednn_faster", lambda: True)
    monkeypatch.setattr(packed_linear, "_FEWEST_MULTIPLICATIONS_OF_ONEDNN", 0)
    monkeypatch.setattr(LinearLayer, "is_small", False)


@pytest.fixture
def always_by_library(monkeypatch):
    """Has the library pack layers of any size but those for which the engine has a kernel."""
    monkeypatch.setattr(packed_linear, "is_onednn_faster", lambda: False)
    monkeypatch.setattr(packed_linear, "_FEWEST_ROWS_OF_LIBRARY", 0)
    monkeypatch.setattr(packed_linear, "_FEWEST_MULTIPLICATIONS_OF_LIBRARY", 0)


class Twice(nn.Module):
    """Uses the result of a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return torch.relu(y) * y


class Given(nn.Module):
    """Returns what a layer computes, and its ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        return y, torch.relu(y)


class Added(nn.Module):
    """Products to which something else than a bias is added."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight.t()
        a = torch.add(y, self.other, alpha=2)
        b = x @ self.weight.t() + x
        c = (x @ self.weight.t()).view(-1, 2, 3) + self.other.view(2, 3)
        d = torch.add(x @ self.weight.t() + self.other, self.other)
        e = torch.addmm(x, x, self.weight.t())
        f = torch.addmm(self.other, x, self.weight.t(), alpha=0.5)
        g = x @ self.weight + (self.other * 2) + 1.5
        return torch.relu(a + b + d + e + f + g) + c.reshape(-1, 6)


class Attention(nn.Module):
    """Attention as a layer of PyTorch, with its projections."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.front = nn.Linear(6, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.front(x).view(x.shape[0], 3, 8))


class Written(nn.Module):
    """A layer whose weight is a buffer that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x, self.weight)
        self.weight.mul_(0.5)
        return y


class Half(nn.Module):
    """A layer in another type, and a weight that is converted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.half()).float() @ self.layer.weight.float().t()


BODIES: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.Linear(6, 5),
    "no bias": lambda: nn.Linear(6, 5, bias=False),
    "relu": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3), nn.ReLU6()),
    "rows of rows": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 2)), nn.Linear(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    ),
    "transposed rows": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 2)), nn.Flatten(0, 1), nn.Linear(2, 4), nn.Unflatten(0, (-1, 3))
    ),
    "twice": Twice,
    "given": Given,
    "added": Added,
    "attention": Attention,
    "other types": Half,
}
NUM_LAYERS = {
    "layer": 1,
    "no bias": 1,
    "relu": 2,
    "rows of rows": 2,
    "transposed rows": 1,
    "twice": 1,
    "given": 1,
    "added": 4,
    "attention": 5,
    "other types": 2,
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return BODIES[name]().eval()


def wrapped(model: nn.Module, **settings: object) -> poptorch.PoplarExecutor:
    options = poptorch.Options()
    for name, value in settings.items():
        getattr(options, name)(value)
    return poptorch.inferenceModel(model, options)


def text_of(executor: poptorch.PoplarExecutor) -> str:
    return executor._executable.program.text()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", BODIES)
def test_packed_layers_equal_plain_pytorch(name):
    model, x = made(name), torch.randn(BATCH, 6)
    expected = model(x)
    inference = wrapped(made(name))
    for _ in range(2):
        torch.testing.assert_close(inference(x), expected)
    text = text_of(inference)
    assert text.count(LAYER) == NUM_LAYERS[name]
    assert text.count(PACK) <= NUM_LAYERS[name]


@pytest.mark.usefixtures("always")
def test_a_nan_when_a_relu_follows_then_is_there_as_in_plain_pytorch():
    model, x = made("relu"), torch.randn(BATCH, 6)
    x[2, 3] = torch.nan
    inference = wrapped(model)
    torch.testing.assert_close(inference(x), model(x), equal_nan=True)
    assert model(x).isnan().sum() == 3
    assert text_of(inference).count(LAYER) == 2


@pytest.mark.usefixtures("always")
def test_bias_of_attention_then_is_part_of_its_projection():
    inference = wrapped(made("attention"))
    inference(torch.randn(BATCH, 6))
    # The two sums around the layer's halves.
    assert text_of(inference).count("aten::add.Tensor") == 2


@pytest.mark.usefixtures("always")
def test_weight_that_calls_change_then_is_not_packed():
    torch.manual_seed(0)
    plain, emulated = Written(), Written()
    emulated.load_state_dict(plain.state_dict())
    x = torch.randn(BATCH, 6)
    inference = wrapped(emulated)
    for _ in range(3):
        torch.testing.assert_close(inference(x), plain(x))
    assert PACK not in text_of(inference)


@pytest.mark.parametrize(
    ("rows", "size", "onednn_is_faster", "packs"),
    [
        (128, 256, True, PACK),
        (127, 256, True, None),
        (127, 256, False, OUR_PACK),
        (16, 256, False, OUR_PACK),
        (15, 260, False, None),
        (15, 1024, False, PACK),
    ],
)
@needs_library
@pytest.mark.usefixtures("without_panels")
def test_layer_then_is_packed_from_a_size_on_by_who_is_faster(
    rows, size, onednn_is_faster, packs, monkeypatch
):
    monkeypatch.setattr(packed_linear, "is_onednn_faster", lambda: onednn_is_faster)
    monkeypatch.setattr(LinearLayer, "is_small", False)
    inference = wrapped(nn.Linear(size, size))
    inference.compile(torch.randn(rows, size))
    text = text_of(inference)
    assert [each for each in (PACK, OUR_PACK) if each in text] == ([packs] if packs else [])


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "change",
    [
        lambda options: options.Training.gradientAccumulation(1),
        lambda options: options.Precision.enableFloatingPointExceptions(True),
        lambda options: options.Precision.enableStochasticRounding(True),
    ],
    ids=["training", "exceptions", "rounding"],
)
def test_layers_then_are_left_alone_where_weights_or_operations_are_watched(change, request):
    model = Given()
    options = poptorch.Options()
    change(options)
    if "training" in request.node.name:
        model = nn.Sequential(model, _Loss())
        executor = poptorch.trainingModel(
            model, options, torch.optim.SGD(model.parameters(), lr=0.1)
        )
    else:
        executor = poptorch.inferenceModel(model, options)
    executor.compile(torch.randn(BATCH, 6))
    assert LAYER not in text_of(executor)
    assert "prepare forward" not in text_of(executor)


class _Loss(nn.Module):
    def forward(self, values: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return poptorch.identity_loss(values[0] + values[1], "mean")


@pytest.mark.usefixtures("always")
def test_without_onednn_then_layers_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(onednn, "IS_AVAILABLE", False)
    model, x = made("relu"), torch.randn(BATCH, 6)
    inference = wrapped(model)
    torch.testing.assert_close(inference(x), model(x))
    assert LAYER not in text_of(inference)
    assert "prepare forward" in text_of(inference)


class Staged(nn.Module):
    """Layers whose parts (weight, product, bias, ReLU) blocks may tear apart."""

    def __init__(self, cuts: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cuts = cuts
        self.weight, self.bias = nn.Parameter(torch.randn(12, 6)), nn.Parameter(torch.randn(12))
        self.layer, self.last = nn.Linear(12, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = [
            lambda x: (x, self.weight.t()),
            lambda given: given[0] @ given[1],
            lambda y: y + self.bias,
            torch.relu,
            self.layer,
            torch.relu,
            self.last,
        ]
        ipu = 0
        value = x
        for index, step in enumerate(steps):
            ipu += index in self.cuts
            with poptorch.Block(ipu_id=ipu):
                value = step(value)
        return value


def sharded(options: poptorch.Options) -> None:
    options.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu))


def off_chip(options: poptorch.Options) -> None:
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setWeightLocation(location.minElementsForOffChip(0))


def two_replicas(options: poptorch.Options) -> None:
    options.replicationFactor(2)
    options.deviceIterations(4)


WAYS: dict[str, tuple[tuple[int, ...], Callable[[poptorch.Options], object]]] = {
    "before the product": ((1,), lambda options: None),
    "before the bias": ((2,), lambda options: None),
    "before each": ((1, 2, 3, 4, 5, 6), lambda options: None),
    "before the ReLU, sharded": ((3, 5), sharded),
    "off chip": ((2, 4), off_chip),
    "replicas": ((3,), two_replicas),
}


@pytest.mark.parametrize("layer", [LAYER, OUR_LAYER])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_bits_do_not_depend_on_stages_places_replicas_or_workers(
    way, workers, layer, monkeypatch, request
):
    if layer == LAYER:
        request.getfixturevalue("always")
    cuts, change = WAYS[way]
    x = torch.randn(8 * BATCH, 6, generator=torch.Generator().manual_seed(1))
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", str(workers))
    results = []
    for model_cuts, model_change in (((), lambda options: None), (cuts, change)):
        options = poptorch.Options()
        options.deviceIterations(8)
        options.autoRoundNumIPUs(True)
        model_change(options)
        inference = poptorch.inferenceModel(Staged(model_cuts).eval(), options)
        results.append(inference(x))
        assert text_of(inference).count(layer) == 3
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], Staged(())(x))


@pytest.mark.usefixtures("always")
def test_executable_when_saved_and_loaded_then_packs_the_weights_it_is_given(tmp_path):
    x = torch.randn(BATCH, 6)
    first = wrapped(made("relu"))
    first.compileAndExport(tmp_path / "file", x, export_model=False)
    model = made("relu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    second = wrapped(model)
    second.loadExecutable(tmp_path / "file")
    torch.testing.assert_close(second(x), model(x))
    assert PACK in text_of(second)


class Chain(nn.Module):
    """A product with a bias of its own operation, and a layer that follows it directly."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 12))
        self.bias = nn.Parameter(torch.randn(16))
        self.layer = nn.Linear(16, 8)

    def forward(self, x):
        return self.layer(x @ self.weight.t() + self.bias)


@pytest.mark.usefixtures("always")
def test_layers_that_follow_each_other_then_have_the_numbers_of_pytorch():
    torch.manual_seed(0)
    model, x = Chain().eval(), torch.randn(8, 12)
    inference = poptorch.inferenceModel(model)
    torch.testing.assert_close(inference(x), model(x).detach(), rtol=1e-5, atol=1e-5)
    assert inference._executable.program.text().count("mkldnn::_linear_pointwise(") == 2
