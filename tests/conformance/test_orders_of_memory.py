"""Results do not depend on the memory order of values, except where PyTorch's do."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emu as poptorch

SHAPE = (2, 8, 6, 6)
Images = torch.Tensor


class Net(nn.Module):
    """A linear layer along the channels, `function`, and a loss."""

    def __init__(self, function: Callable[..., Images], *layers: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.layers = nn.ModuleList(layers)
        self._function = function

    def forward(self, x: Images, target: Images) -> tuple[Images, Images]:
        images = self.linear(x).permute(0, 3, 1, 2)
        result = self._function(images, *self.layers)
        return result, F.mse_loss(result, target)


def conv() -> nn.Module:
    return nn.Conv2d(8, 8, 3, padding=1)


def attention(x: Images, layer: nn.Module) -> Images:
    h = layer(x)
    return F.scaled_dot_product_attention(h, h, h)


def rotated(x: Images, layer: nn.Module) -> Images:
    pairs = torch.view_as_complex(layer(x).contiguous().view(2, 8, 6, 3, 2))
    return torch.view_as_real(pairs).flatten(3)


def masked(x: Images) -> Images:
    y = x.reshape(2, 2, 4, 6, 6).transpose(1, 3)
    y.masked_fill_(y > 0.5, 0.25)
    return y.transpose(1, 3).reshape(SHAPE)


def seen(x: Images, layer: nn.Module) -> Images:
    h = layer(x)
    return h * (2.0 if h.is_contiguous() else 3.0) + h.stride(1)


def bags(x: Images) -> Images:
    """Adds sums of some channels, which are the rows of a table that lies by columns."""
    rows = torch.tensor([[0, 1], [5, 2]], device=x.device)
    sums = F.embedding_bag(rows, x[0].flatten(1), mode="sum")
    return x + sums.view(2, 1, 6, 6)


class Asking(torch.autograd.Function):
    """The identity, with a gradient that depends on the memory order that Python sees."""

    @staticmethod
    def forward(ctx: object, x: Images) -> Images:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Images) -> Images:
        return gradient * (2.0 if gradient.is_contiguous() else 3.0)


def added(x: Images, layer: nn.Module) -> Images:
    h = layer(x) * 2
    rows = h.as_strided((4, 16), (32, 1), 3)
    rows.mul_(3.0)
    return h


CASES = {
    "group norm": (lambda x, c, n: n(c(x)), conv, lambda: nn.GroupNorm(2, 8)),
    "group norm of rows": (
        lambda x, c, n: n(c(x).flatten(2)).view(SHAPE),
        conv,
        lambda: nn.GroupNorm(2, 8),
    ),
    "transposed convolution": (
        lambda x, c, n: n(c(x)),
        lambda: nn.ConvTranspose2d(8, 8, 3, padding=1, groups=2),
        lambda: nn.GroupNorm(2, 8),
    ),
    "weight channels last": (
        lambda x, c, n: n(
            F.conv2d(
                x.contiguous(), c.weight.contiguous(memory_format=torch.channels_last), padding=1
            )
        ),
        lambda: nn.Conv2d(8, 8, 3, bias=False),
        lambda: nn.GroupNorm(2, 8),
    ),
    "attention": (attention, conv),
    "complex numbers": (rotated, conv),
    "elements in memory": (lambda x, c: c(x).as_strided(SHAPE, (288, 36, 6, 1)), conv),
    "elements of a part": (lambda x, c: c(x)[1].as_strided(SHAPE, (0, 36, 6, 1)), conv),
    "elements of permuted images": (lambda x: x.as_strided(SHAPE, (288, 36, 6, 1)),),
    "elements of what is changed": (added, conv),
    "strides that Python sees": (seen, conv),
    "strides of a norm that Python sees": (
        lambda x, c, n: seen(c(x), n),
        conv,
        lambda: nn.GroupNorm(2, 8),
    ),
    "strides of a norm's gradient": (
        lambda x, c, n: n(Asking.apply(c(x))),
        conv,
        lambda: nn.GroupNorm(2, 8),
    ),
    "bags of a permuted table": (bags,),
    "permuted view changed in place": (masked,),
    "channels shuffled": (
        lambda x, n: n(torch.channel_shuffle(x, 2)),
        lambda: nn.GroupNorm(2, 8),
    ),
    "images rolled": (
        lambda x, n: n(x.roll((1, 1), (2, 3)).contiguous()),
        lambda: nn.GroupNorm(2, 8),
    ),
}


def net(name: str) -> tuple[Net, Images, Images]:
    function, *layers = CASES[name]
    torch.manual_seed(0)
    model = Net(function, *(make() for make in layers))
    return model, torch.randn(2, 6, 6, 8), torch.randn(SHAPE)


def options(num_micro_batches: int = 1) -> poptorch.Options:
    settings = poptorch.Options().showCompilationProgressBar(False)
    return settings.deviceIterations(num_micro_batches).outputMode(poptorch.OutputMode.All)


@pytest.mark.parametrize("name", CASES)
def test_inference_when_values_are_permuted_then_equals_pytorch(name: str) -> None:
    model, x, target = net(name)
    with torch.no_grad():
        expected = torch.cat([model(x, target)[0], model(x + 1, target)[0]])
    batch = torch.cat([x, x + 1]), torch.cat([target, target])
    actual, _ = poptorch.inferenceModel(model, options(2))(*batch)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_step_when_values_are_permuted_then_equals_pytorch_s(name: str) -> None:
    model, x, target = net(name)
    plain = copy.deepcopy(model)
    plain(x, target)[1].backward()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    poptorch.trainingModel(model, options(), optimizer)(x, target)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(
            ours.detach(), theirs.detach() - theirs.grad, rtol=1e-4, atol=1e-5
        )


def test_as_strided_when_it_reads_beyond_a_value_then_is_refused_by_its_line() -> None:
    class Model(nn.Module):
        def forward(self, x: Images) -> Images:
            return torch.view_as_complex(x)[1:].real.as_strided((1, 2), (1, 1), 0)

    with pytest.raises(poptorch.Error, match=r"as_strided at .*test_orders_of_memory.py:\d+ reads"):
        poptorch.inferenceModel(Model(), options())(torch.randn(3, 2))
