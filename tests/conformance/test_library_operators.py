"""Operators of other libraries in a model (ops-coverage.md 3.14)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.helpers import Setting, assert_same_training
from support.small_models import options, run, trained
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Operators of other libraries", fidelity="exact")


class SquareCpu(torch.autograd.Function):
    """Squares CPU tensors only, as libraries do that read memory themselves."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        assert x.device.type == "cpu", "x must be CPU tensor"
        ctx.save_for_backward(x)
        ctx.factor = factor
        return torch.from_numpy(factor * x.numpy() ** 2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(2 * ctx.factor * x.numpy() * gradient.numpy()), None


def _largest(x: torch.Tensor, others: list[torch.Tensor], *, by: int = 1) -> tuple:
    assert x.device.type == "cpu", "x must be CPU tensor"
    value, where = torch.stack([x, *others]).max(0)
    return value * by, where


@pytest.fixture(autouse=True, scope="module")
def library() -> Iterator[None]:
    """Registers each kernel for all devices, as `torch::RegisterOperators().op(...)` does."""
    library = torch.library.Library("cpu_only", "DEF")

    def add(schema: str, kernel: Any, key: str = "CompositeImplicitAutograd") -> None:
        library.define(schema)
        library.impl(schema.partition("(")[0], kernel, key)

    add("square(Tensor x, float factor=1.0) -> Tensor", lambda x, f=1.0: SquareCpu.apply(x, f))
    add("largest(Tensor x, Tensor[] others, *, int by=1) -> (Tensor value, Tensor at)", _largest)
    add("positive(Tensor x) -> Tensor", lambda x: torch.from_numpy(x.numpy()[x.numpy() > 0]))
    add("into(Tensor x, Tensor out) -> Tensor", lambda x, out: out.copy_(x))
    add("count(Tensor x) -> int", lambda x: x.numel())
    add("fails(Tensor x) -> Tensor", lambda x: x.reshape(-1, 7))
    add("table(Tensor sizes) -> Tensor", lambda s: torch.zeros(int(s.numpy().sum())))
    add("plain(Tensor x) -> Tensor", lambda x: torch.from_numpy(x.numpy() + 1), "CPU")
    yield
    library._destroy()


X = torch.randn(4, 3)


def test_operator_when_run_then_its_own_kernel_computes() -> None:
    torch.testing.assert_close(
        run(lambda x: torch.ops.cpu_only.square(x + 1, 3.0), X), 3 * (X + 1) ** 2
    )
    torch.testing.assert_close(run(lambda x: torch.ops.cpu_only.square.default(x), X), X**2)


def test_operator_when_it_takes_lists_and_returns_several_then_all_arrive() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value, at = torch.ops.cpu_only.largest(x, [x * 2, -x], by=2)
        return value, at

    value, at = run(function, X)
    expected, where = torch.stack([X, X * 2, -X]).max(0)
    torch.testing.assert_close(value, expected * 2)
    assert torch.equal(at, where.int())


def test_operator_when_trained_then_the_librarys_own_autograd_is_asked() -> None:
    weight = torch.randn(3)
    (after,) = trained(
        lambda x, w: poptorch.identity_loss(torch.ops.cpu_only.square(x * w, 0.5), "sum"),
        [weight],
        [(X,)],
    )
    torch.testing.assert_close(after, weight - 0.1 * (X**2 * weight).sum(0))


def test_operator_when_some_results_have_no_gradient_then_the_others_pass_theirs() -> None:
    weight = torch.randn(3)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        value, at = torch.ops.cpu_only.largest(x * w, [x, w * w + x * 0])
        return poptorch.identity_loss(value * (at + 1), "sum")

    (after,) = trained(loss, [weight], [(X,)])
    leaf = weight.clone().requires_grad_()
    value, at = _largest(X * leaf, [X, leaf * leaf + X * 0])
    (value * (at + 1)).sum().backward()
    torch.testing.assert_close(after, weight - 0.1 * leaf.grad)


class Net(nn.Module):
    """A layer of the library between two of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        with poptorch.Block("first", ipu_id=0):
            x = self.first(x)
        with poptorch.Block("last", ipu_id=1):
            x = self.last(torch.ops.cpu_only.square(x))
            return x, F.cross_entropy(x, labels)


@pytest.mark.parametrize("strategy", ["sharded", "pipelined"])
def test_network_when_trained_then_equals_the_plain_loop(strategy: str) -> None:
    assert_same_training(
        Net(),
        lambda rows: (torch.randn(rows, 5), torch.randint(3, (rows,))),
        Setting(strategy, accumulation=4),
        rows=2,
        num_updates=3,
    )


def test_graph_when_captured_then_holds_one_node_for_the_operator() -> None:
    model = poptorch.inferenceModel(nn.Identity(), options())
    model.model.forward = lambda x: torch.ops.cpu_only.square(x)
    model.compile(X)
    assert "cpu_only__square" in str(model._executable.look_up().graph.fx)


def test_argument_when_changed_in_place_before_backward_then_refused_with_its_line() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        z = torch.ops.cpu_only.square(y)
        y.add_(1)
        return poptorch.identity_loss(z, "sum")

    with pytest.raises(poptorch.Error, match=rf"changes in place afterwards, at {__file__}:\d+"):
        trained(loss, [torch.randn(3)], [(X,)])


def test_shape_when_it_follows_from_constants_then_known() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        sizes = torch.tensor([2, 3], device=x.device)
        return torch.ops.cpu_only.table(sizes) + x.sum()

    torch.testing.assert_close(run(function, X), X.sum().expand(5))


def test_shape_when_it_depends_on_data_then_the_run_says_so() -> None:
    with pytest.raises(poptorch.Error, match="shape of its results depends on data.*poptorch.CPU"):
        run(lambda x: torch.ops.cpu_only.positive(x), X)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.ops.cpu_only.into(x, x * 0), "writes its result into an argument"),
        (lambda x: x + torch.ops.cpu_only.count(x), "returns int, not tensors alone"),
        (lambda x: torch.ops.cpu_only.fails(x), "by running it on zeros, and failed: shape"),
    ],
    ids=["into", "count", "fails"],
)
def test_operator_when_it_cannot_be_captured_then_error_names_line_and_way_out(
    function: Any, message: str
) -> None:
    with pytest.raises(poptorch.Error, match=message) as error:
        run(function, X)
    assert f"test_library_operators.py:{function.__code__.co_firstlineno}" in str(error.value)
    assert "poptorch.CPU" in str(error.value)


def test_operator_when_it_has_a_kernel_for_the_cpu_alone_then_runs() -> None:
    torch.testing.assert_close(run(lambda x: torch.ops.cpu_only.plain(x), X), X + 1)


def test_tensor_of_the_host_when_an_argument_then_is_a_constant() -> None:
    other = torch.randn(4, 3)
    value, _ = run(lambda x: torch.ops.cpu_only.largest(x, [other]), X)
    torch.testing.assert_close(value, torch.maximum(X, other))


def test_operator_when_outside_of_a_model_then_untouched() -> None:
    torch.testing.assert_close(torch.ops.cpu_only.square(X), X**2)
