"""Casting rules of mixed float16 and float32 operands (semantics §7.2), and half models (§7.2)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.models import FAMILIES
from support.small_models import Function, options, run, trained
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Mixed half and float", fidelity="exact")

_HALF, _SINGLE = torch.float16, torch.float32
_OTHER = {_HALF: _SINGLE, _SINGLE: _HALF}

# Functions whose weights take the type of the input: (function, shape of the input, shapes of the
# weights).
_BY_INPUT = {
    "linear": (F.linear, (3, 4), [(5, 4), (5,)]),
    "linear_no_bias": (F.linear, (3, 4), [(5, 4)]),
    "conv1d": (F.conv1d, (2, 3, 8), [(4, 3, 3), (4,)]),
    "conv2d": (F.conv2d, (2, 3, 6, 6), [(4, 3, 3, 3), (4,)]),
    "conv3d": (F.conv3d, (1, 2, 4, 4, 4), [(3, 2, 2, 2, 2), (3,)]),
    "conv_transpose2d": (F.conv_transpose2d, (2, 3, 4, 4), [(3, 2, 3, 3), (2,)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (3, 4), [(4,), (4,)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (3, 4, 5), [(4,), (4,)]),
    "instance_norm": (
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        (2, 4, 5),
        [(4,), (4,)],
    ),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        (6, 4),
        [(4,), (4,)],
    ),
}

# Functions whose operands all take the widest type.
_PROMOTED = {
    "matmul": (torch.matmul, [(3, 4), (4, 5)]),
    "operator": (lambda a, b: a @ b, [(2, 3, 4), (4, 5)]),
    "mm": (torch.mm, [(3, 4), (4, 5)]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "mv": (torch.mv, [(3, 4), (4,)]),
    "addmm": (torch.addmm, [(3, 5), (3, 4), (4, 5)]),
    "baddbmm": (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), [(3, 4), (4, 5)]),
    "add": (torch.add, [(3, 4), (3, 4)]),
    "multiply": (torch.mul, [(3, 4), (4,)]),
    "where": (lambda a, b: torch.where(a > 0, a, b), [(3, 4), (3, 4)]),
    "mse_loss": (F.mse_loss, [(3, 4), (3, 4)]),
    "attention": (F.scaled_dot_product_attention, [(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)]),
}


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compares results; two float16 kernels may round the last bit differently."""
    tolerance = 4e-3 if expected.dtype is _HALF else 1e-5
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [_HALF, _SINGLE], ids=str)
@pytest.mark.parametrize("name", _BY_INPUT)
def test_weights_when_of_another_type_then_take_that_of_the_input(
    name: str, dtype: torch.dtype
) -> None:
    function, shape, weight_shapes = _BY_INPUT[name]
    x = torch.randn(shape, dtype=dtype)
    weights = [torch.randn(s, dtype=_OTHER[dtype]) for s in weight_shapes]
    result = poptorch.inferenceModel(Function(function, *weights), options())(x)
    assert result.dtype is dtype
    close(result, function(x, *(weight.to(dtype) for weight in weights)))


@pytest.mark.parametrize("dtype", [_HALF, _SINGLE], ids=str)
@pytest.mark.parametrize("name", _BY_INPUT)
def test_gradient_when_weights_are_cast_then_updates_them_in_their_own_type(
    name: str, dtype: torch.dtype
) -> None:
    function, shape, weight_shapes = _BY_INPUT[name]
    x = torch.randn(shape, dtype=dtype)
    weights = [torch.randn(s, dtype=_OTHER[dtype]) for s in weight_shapes]
    after = trained(
        lambda *a: poptorch.identity_loss(function(*a).float().tanh(), "sum"), weights, [(x,)]
    )
    leaves = [weight.clone().requires_grad_() for weight in weights]
    function(x, *(leaf.to(dtype) for leaf in leaves)).float().tanh().sum().backward()
    for value, leaf in zip(after, leaves, strict=True):
        expected = (leaf.detach().float() - 0.1 * leaf.grad.float()).to(leaf.dtype)
        assert value.dtype is _OTHER[dtype]
        torch.testing.assert_close(value, expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("first", [_HALF, _SINGLE], ids=str)
@pytest.mark.parametrize("name", _PROMOTED)
def test_operands_when_of_two_types_then_result_is_the_wider(name: str, first: torch.dtype) -> None:
    function, shapes = _PROMOTED[name]
    dtypes = [first, *[_OTHER[first]] * (len(shapes) - 1)]
    operands = [torch.randn(s, dtype=d) for s, d in zip(shapes, dtypes, strict=True)]
    result = poptorch.inferenceModel(Function(lambda _, *a: function(*a), *operands), options())(
        torch.zeros(1)
    )
    assert result.dtype is _SINGLE
    close(result, function(*(operand.float() for operand in operands)))


@pytest.mark.parametrize("dtype", [_HALF, _SINGLE], ids=str)
def test_embedding_when_indexed_then_has_the_weights_type(dtype: torch.dtype) -> None:
    weight = torch.randn(7, 3, dtype=dtype)
    index = torch.tensor([1, 6])
    result = poptorch.inferenceModel(Function(F.embedding, weight), options())(index)
    torch.testing.assert_close(result, weight[index], rtol=0, atol=0)


@pytest.mark.parametrize("statistics", [_HALF, _SINGLE], ids=str)
@pytest.mark.parametrize("dtype", [_HALF, _SINGLE], ids=str)
def test_running_statistics_when_input_differs_then_keep_their_type(
    dtype: torch.dtype, statistics: torch.dtype
) -> None:
    norm = nn.BatchNorm1d(3)
    norm.running_mean, norm.running_var = (
        norm.running_mean.to(statistics),
        norm.running_var.to(statistics),
    )
    model = nn.Sequential(norm, nn.Flatten(0))
    x = torch.randn(8, 3, dtype=dtype) + 2

    class Training(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor):
            return poptorch.identity_loss(self.inner(x), "sum")

    training = poptorch.trainingModel(Training(), options(), torch.optim.SGD(model.parameters(), 0))
    training(x)
    training.destroy()
    assert norm.running_mean.dtype is statistics
    torch.testing.assert_close(
        norm.running_mean.float(), 0.1 * x.float().mean(0), rtol=0, atol=2e-3
    )
    expected = 0.9 + 0.1 * x.float().var(0)
    torch.testing.assert_close(norm.running_var.float(), expected, rtol=0, atol=2e-3)


def test_casts_inside_forward_when_made_then_work() -> None:
    result = run(lambda x: (x.half() * 2).float() + x.half(), torch.tensor([0.1, 0.2]))
    x = torch.tensor([0.1, 0.2])
    torch.testing.assert_close(result, (x.half() * 2).float() + x.half(), rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_half", [(True, True), (True, False), (False, True)], ids=str)
def test_half_model_when_trained_then_follows_float32(
    family: str, is_half: tuple[bool, bool]
) -> None:
    """(weights, inputs) in float16; losses stay near those of float32 for some updates."""
    batch = FAMILIES[family].batch(4)
    losses = {}
    for weights_half, inputs_half in ((False, False), is_half):
        torch.manual_seed(5)
        model = FAMILIES[family].make(1)
        dtype = next(iter(model.parameters())).dtype
        if weights_half:
            model.half()
            dtype = _HALF
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05)
        training = poptorch.trainingModel(model, options(), optimizer)
        cast = [x.half() if inputs_half and x.is_floating_point() else x for x in batch]
        values = torch.stack([training(*cast)[1].float().mean() for _ in range(4)])
        training.destroy()
        assert {p.dtype for p in model.parameters()} == {dtype}
        losses[weights_half, inputs_half] = values
    torch.testing.assert_close(losses[is_half], losses[False, False], rtol=0.02, atol=0.02)


def test_half_model_when_trained_then_weights_are_rounded_once() -> None:
    """The update is computed in float32 and rounded to the weight's type (§6.7)."""
    torch.manual_seed(1)
    weight = torch.randn(5, 4).half()
    batches = [(torch.randn(3, 4).half(),) for _ in range(10)]
    (after,) = trained(
        lambda x, w: poptorch.identity_loss((x @ w.t()).tanh(), "sum"), [weight], batches
    )
    expected = weight.clone()
    for (x,) in batches:
        leaf = expected.clone().requires_grad_()
        (x @ leaf.t()).tanh().sum().backward()
        expected = (expected.float() - 0.1 * leaf.grad.float()).half()
    torch.testing.assert_close(after, expected, rtol=0, atol=0)


_WITHOUT_HALF_KERNEL = {
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2, padding=1), (2, 3, 4, 4, 4)),
    "AvgPool3d": (nn.AvgPool3d(3, stride=1), (3, 4, 4, 4)),
    "cdist": (lambda x: torch.cdist(x, x[:2] + 1, p=1.0), (5, 3)),
    "cdist, p 2": (lambda x: torch.cdist(x, x[:2] + 1), (2, 5, 3)),
}


@pytest.mark.parametrize("name", _WITHOUT_HALF_KERNEL)
def test_half_operation_that_pytorch_has_no_kernel_for_then_rounded_float32(name) -> None:
    """PopTorch computes float16 where PyTorch's CPU refuses it (ops-coverage.md 3.6, 3.8)."""
    function, shape = _WITHOUT_HALF_KERNEL[name]
    x = torch.randn(shape).half()
    result = run(function, x)
    assert result.dtype is _HALF
    torch.testing.assert_close(result.float(), function(x.float()), rtol=2e-3, atol=2e-3)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(function(weight).float().square(), "sum")

    (after,) = trained(lambda _, weight: loss(weight), [x], [(torch.zeros(1),)])
    leaf = x.float().requires_grad_()
    loss(leaf).backward()
    torch.testing.assert_close(after.float(), x.float() - 0.1 * leaf.grad, rtol=5e-3, atol=2e-2)
