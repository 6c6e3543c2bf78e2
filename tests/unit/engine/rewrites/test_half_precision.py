"""Operations with slow float16 kernels are computed in float32 and rounded once."""

import pytest
import torch
from support.rewrites import leave_out
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.engine.rewrites import table
from poptorch_emu.engine.rewrites.half_precision import widen_half_kernels
from poptorch_emu.ir.marks import IS_WIDENED
from poptorch_emu.ir.verify import verify

BATCH, WIDTH, WINDOW = 4, 8, 4


class Products(nn.Module):
    """A product of each kind, on two IPUs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, 6)
        self.second = nn.Linear(6, WIDTH, bias=False)
        self.table = nn.Parameter(torch.randn(BATCH, WIDTH, 3) / 2)
        self.added = nn.Parameter(torch.randn(BATCH, 2, 3) / 2)

    def forward(self, x):
        with poptorch.Block("a", ipu_id=0):
            y = self.second(self.first(x))
            rows = torch.stack([y, y.flip(0)], 1)
        with poptorch.Block("b", ipu_id=1):
            z = torch.baddbmm(self.added, rows, self.table)
            z = torch.bmm(z, self.table.transpose(1, 2))
            loss = (z @ z.transpose(1, 2)).float().abs().mean()
            return z, poptorch.identity_loss(loss, "none")


class Attention(nn.Module):
    """Attention of two heads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.front = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        rows = self.front(x).view(BATCH, 3, WIDTH)
        y, _ = self.layer(rows, rows, rows, need_weights=False)
        return y, poptorch_loss(y)


class Images(nn.Module):
    """Poolings of images, and squares."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolutions = nn.ModuleList(nn.Conv2d(1 + 3 * i, 4, 3, padding=1) for i in (0, 1))

    def forward(self, x):
        x = x.view(BATCH, 1, 2, WIDTH // 2).repeat(1, 1, 4, 2)
        for convolution in self.convolutions:
            x = nn.functional.max_pool2d(convolution(x), 2)
        return x, poptorch_loss(torch.tanh(x) ** 2 + torch.tanh(x) ** 3)


def poptorch_loss(x):
    return poptorch.identity_loss(x.float().square().mean(), "none")


MODELS = {"products": Products, "attention": Attention, "images": Images}


def options(window=1):
    result = poptorch.Options()
    result.Training.gradientAccumulation(window)
    result.showCompilationProgressBar(False)
    return result


def trained(name, dtype):
    """Returns results and weights after two updates."""
    model = MODELS[name]().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options(WINDOW), optimizer)
    inputs = torch.randn(2, WINDOW * BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    results = [training(x.to(dtype))[0].float() for x in inputs]
    training.destroy()
    return results, {key: value.detach().float() for key, value in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_training_in_half_precision_then_is_that_in_float32_but_for_roundings(name):
    results, weights = trained(name, torch.float16)
    expected, expected_weights = trained(name, torch.float32)
    for found, other in zip(results, expected, strict=True):
        torch.testing.assert_close(found, other, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(weights, expected_weights, rtol=2e-2, atol=2e-2)


def is_single(node):
    return node.meta["val"].dtype is torch.float32


def check_operations(code):
    """Checks that all of these operations are in float32, with casts on their own stages."""
    names = ("mm.default", "attention_for_cpu_backward.default", "max_pool2d_with_indices.default")
    port_of = code.placed.port_of
    for node in code.graph.operations:
        is_square = "aten.pow" in str(node.target) and node.args[1] == 2
        if not is_square and not str(node.target).endswith(names):
            continue
        inputs = node.all_input_nodes
        assert all(map(is_single, inputs))
        if IS_WIDENED not in node.meta:
            continue  # The user's own cast.
        made = [node] if isinstance(node.meta["val"], torch.Tensor) else list(node.users)
        results = [user for each in filter(is_single, made) for user in each.users]
        assert all(each.meta["val"].dtype is torch.float16 for each in results)
        casts = [each for each in inputs if "_to_copy" in str(each.target)] + results
        assert {port_of[each] for each in casts} == {port_of[node]}
    verify(code.graph)


@pytest.mark.parametrize(
    ("name", "num_changes"), [("products", 14), ("attention", 9), ("images", 4)]
)
def test_operations_that_are_slow_then_all_are_float32_on_their_stages(
    name, num_changes, monkeypatch
):
    counts = []

    def widen(code):
        counts.append(widen_half_kernels(code))
        check_operations(code)
        return counts[-1]

    with monkeypatch.context() as patched:
        others = [each for each in table.REWRITES if each.apply is not widen_half_kernels]
        patched.setattr(table, "REWRITES", (table.Rewrite(widen), *others))
        results, weights = trained(name, torch.float16)
    assert counts == [num_changes]

    leave_out(monkeypatch, widen_half_kernels)
    others, other_weights = trained(name, torch.float16)
    torch.testing.assert_close(results, others, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(weights, other_weights, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", MODELS)
def test_inference_in_half_precision_then_is_plain_pytorch_with_one_rounding(name):
    model = MODELS[name]().half().eval()
    x = torch.randn(2 * BATCH, WIDTH).half()
    inference = poptorch.inferenceModel(model, options().deviceIterations(2))
    with torch.no_grad():
        expected = torch.cat([model(part)[0] for part in x.chunk(2)])
    found = inference(x)[0]
    has_images = name == "images" and torch.backends.mkldnn.is_available()
    assert ("convolution_pointwise" in inference._executable.program.text()) is has_images
    assert found.dtype is torch.float16
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


def test_a_linear_layer_in_half_precision_then_is_rounded_once():
    model = nn.Linear(64, 32).half().eval()
    x = torch.randn(BATCH, 64).half()
    inference = poptorch.inferenceModel(model, options())
    exact = nn.functional.linear(x.double(), model.weight.double(), model.bias.double())
    # Sums in float32 are off by less than the distance of two neighbours in float16.
    error = (inference(x).double() - exact).abs()
    assert (error <= exact.abs() * 2**-11 * 1.01 + 1e-6).all()


@pytest.mark.parametrize("setting", [{}, {"enableFloatingPointExceptions": True}])
def test_a_product_that_is_too_large_then_is_infinite_or_an_error(setting):
    model = nn.Linear(4, 4, bias=False).half().eval()
    chosen = options()
    for name, value in setting.items():
        getattr(chosen.Precision, name)(value)
    inference = poptorch.inferenceModel(model, chosen)
    with torch.no_grad():
        model.weight.fill_(300.0)
    x = torch.full((2, 4), 300.0).half()
    if setting:
        with pytest.raises(poptorch.Error, match="[Oo]verflow|not finite|floating-point"):
            inference(x)
    else:
        assert torch.equal(inference(x), torch.full((2, 4), torch.inf).half())
