"""Indices and labels of any integer type (ops-coverage.md 3.3, semantics.md 5.3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.small_models import run, trained

import poptorch_emu as poptorch

pytestmark = [
    pytest.mark.feature("Indices and labels of any integer type", fidelity="exact"),
    pytest.mark.filterwarnings("ignore:index_reduce.. is in beta"),  # PyTorch warns once.
]

ROWS, CLASSES = 4, 5
TYPES = [torch.int32, torch.int16, torch.int8, torch.uint8]

# Functions of (values [ROWS, CLASSES], index [ROWS]) that are differentiable in the values.
_FUNCTIONS: dict[str, Callable] = {
    "cross_entropy": F.cross_entropy,
    "cross_entropy_smoothed": lambda x, i: F.cross_entropy(x, i, label_smoothing=0.1),
    "cross_entropy_none": lambda x, i: F.cross_entropy(x, i, reduction="none"),
    "nll_loss": lambda x, i: F.nll_loss(x.log_softmax(1), i),
    "nll_loss_2d": lambda x, i: F.nll_loss(x.T.log_softmax(0)[None], i[None]),
    "multi_margin_loss": F.multi_margin_loss,
    "multilabel_margin_loss": lambda x, i: F.multilabel_margin_loss(
        x[:, :4], i.clamp(max=3).expand(4, 4)
    ),
    "gather": lambda x, i: x.gather(1, i[:, None]),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i[:, None], 1),
    "take": lambda x, i: x.take(i),
    "scatter": lambda x, i: torch.zeros_like(x).scatter(1, i[:, None], x[:, :1]),
    "scatter_": lambda x, i: torch.zeros_like(x).scatter_(1, i[:, None], x[:, :1]),
    "scatter_add": lambda x, i: torch.ones_like(x).scatter_add(1, i[:, None], x[:, :1]),
    "scatter_reduce": lambda x, i: x.scatter_reduce(1, i.expand(4, 4), x[:, 1:], "prod"),
    "index_select": lambda x, i: x.index_select(1, i),
    "index_add": lambda x, i: torch.ones_like(x).index_add(1, i, x[:, :4]),
    "index_copy": lambda x, i: torch.ones_like(x).index_copy(1, i, x[:, :4]),
    "index_fill": lambda x, i: x.index_fill(1, i, 2.0),
    "index_reduce": lambda x, i: x.index_reduce(1, i, x[:, :4], "mean"),
    "put": lambda x, i: x.put(i, x[:, 0], accumulate=True),
    "embedding": lambda x, i: F.embedding(i, x.T),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x.T, mode="sum"),
    "one_hot": lambda x, i: x * F.one_hot(i, CLASSES),
    "ctc_loss": lambda x, i: F.ctc_loss(
        x.T.reshape(CLASSES, 1, ROWS).log_softmax(2), i.clamp(1, 3)[None, :2], i[3:] + 1, i[2:3]
    ),
}
_INDEX = torch.tensor([0, 3, 2, 4])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_operator_when_indices_are_narrow_then_equals_int64(name: str, dtype: torch.dtype) -> None:
    function, x = _FUNCTIONS[name], torch.randn(ROWS, CLASSES)
    torch.testing.assert_close(run(function, x, _INDEX.to(dtype)), function(x, _INDEX))


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_operator_when_indices_are_int32_then_gradients_equal_int64(name: str) -> None:
    function, weight = _FUNCTIONS[name], torch.randn(ROWS, CLASSES)

    def loss(index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(function(weight, index).square(), "sum")

    (after,) = trained(loss, [weight], [(_INDEX.int(),)])
    leaf = weight.clone().requires_grad_()
    function(leaf, _INDEX).square().sum().backward()
    torch.testing.assert_close(after, weight - 0.1 * leaf.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8], ids=str)
def test_brackets_when_indices_are_narrow_then_they_read_and_write(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, index] = x[:, :4] * 2
        return y + x[index[:3] - index[:3]].sum()

    x = torch.randn(ROWS, CLASSES)
    torch.testing.assert_close(run(function, x, _INDEX.to(dtype)), function(x, _INDEX))


def test_brackets_when_the_index_is_uint8_then_it_is_a_mask() -> None:
    x, mask = torch.randn(4), torch.tensor([1, 0, 1, 1], dtype=torch.uint8)

    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[mask] = 0.0
        return y

    expected = torch.where(mask.bool(), torch.zeros(()), x)
    torch.testing.assert_close(run(function, x, mask), expected)
