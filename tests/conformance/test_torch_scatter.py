"""Graph networks with torch_scatter and torch_spline_conv (ops-coverage.md 3.3, 3.14)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.helpers import Setting, assert_same_training
from support.small_models import Function, options, run, trained
from torch import nn

import poptorch_emu as poptorch

torch_scatter = pytest.importorskip("torch_scatter")

pytestmark = pytest.mark.feature("torch_scatter", fidelity="exact")

NODES, EDGES, WIDTH = 6, 14, 4
INDEX = torch.tensor([3, 0, 0, 3, 1, 3, 0, 4, 4, 1, 0, 3, 3, 0])
POINTERS = torch.tensor([0, 5, 5, 8, 13, 14, 14])

# Functions of (values of edges, unsorted index, sorted index, pointers).
_FUNCTIONS: dict[str, Callable] = {
    **{
        reduce: lambda x, i, s, p, reduce=reduce: torch_scatter.scatter(
            x, i, 0, dim_size=NODES, reduce=reduce
        )
        for reduce in ("sum", "mul", "mean", "min", "max")
    },
    "max with positions": lambda x, i, s, p: torch_scatter.scatter_max(x, i, 0, dim_size=NODES),
    "min with positions": lambda x, i, s, p: torch_scatter.scatter_min(
        x.T.contiguous(), i, -1, dim_size=NODES
    ),
    "softmax": lambda x, i, s, p: torch_scatter.scatter_softmax(x, i, 0, dim_size=NODES),
    "log_softmax": lambda x, i, s, p: torch_scatter.scatter_log_softmax(x, i, 0, dim_size=NODES),
    "logsumexp": lambda x, i, s, p: torch_scatter.scatter_logsumexp(x, i, 0, dim_size=NODES),
    "std": lambda x, i, s, p: torch_scatter.scatter_std(x, i, 0, dim_size=NODES),
    **{
        f"segment_{reduce}_coo": lambda x, i, s, p, reduce=reduce: torch_scatter.segment_coo(
            x, s, dim_size=NODES, reduce=reduce
        )
        for reduce in ("sum", "mean", "min", "max")
    },
    **{
        f"segment_{reduce}_csr": lambda x, i, s, p, reduce=reduce: torch_scatter.segment_csr(
            x, p, reduce=reduce
        )
        for reduce in ("sum", "mean", "min", "max")
    },
    **{
        f"{name} into": lambda x, i, s, p, name=name: getattr(torch_scatter, name)(
            x, i, 0, out=torch.full((NODES, WIDTH), 0.3, device=x.device)
        )
        for name in ("scatter_sum", "scatter_mul", "scatter_max", "scatter_min")
    },
    "gather_coo": lambda x, i, s, p: torch_scatter.gather_coo(x, s),
    "gather_csr": lambda x, i, s, p: torch_scatter.gather_csr(x[:NODES], POINTERS.to(x.device)),
}


def _values(result) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_operator_when_run_then_equals_the_package(name: str) -> None:
    inputs = (torch.randn(EDGES, WIDTH), INDEX, INDEX.sort().values, POINTERS)
    result, expected = run(_FUNCTIONS[name], *inputs), _FUNCTIONS[name](*inputs)
    if isinstance(expected, tuple):
        assert torch.equal(result[1], expected[1].int())
    torch.testing.assert_close(_values(result), _values(expected))


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_operator_when_trained_then_gradients_equal_the_packages(name: str) -> None:
    weight = torch.randn(EDGES, WIDTH)
    inputs = (INDEX, INDEX.sort().values, POINTERS)

    def loss(index, ordered, pointers, weight):
        value = _values(_FUNCTIONS[name](weight, index, ordered, pointers))
        return poptorch.identity_loss((value * value).sum(), "sum")

    (after,) = trained(loss, [weight], [inputs])
    leaf = weight.clone().requires_grad_()
    _values(_FUNCTIONS[name](leaf, *inputs)).square().sum().backward()
    torch.testing.assert_close(after, weight - 0.1 * leaf.grad, rtol=1e-4, atol=1e-5)


def test_operator_when_captured_then_is_made_of_aten_operations() -> None:
    model = poptorch.inferenceModel(
        Function(lambda x, i: torch_scatter.scatter_max(x, i, 0, dim_size=NODES)[0]), options()
    )
    model.compile(torch.randn(EDGES, WIDTH), INDEX)
    graph = model._executable.look_up().graph
    assert all(str(node.target).startswith(("aten", "<built-in")) for node in graph.operations)


@pytest.mark.parametrize("name", ["scatter_max", "scatter_mul"])
def test_size_when_it_depends_on_data_then_error_asks_for_it(name: str) -> None:
    with pytest.raises(poptorch.Error, match=r"largest index\. Pass dim_size="):
        run(lambda x, i: getattr(torch_scatter, name)(x, i, 0), torch.randn(EDGES), INDEX)


class MessagePassing(nn.Module):
    """Two rounds: messages along edges, attention over what arrives, the sum, an update."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))
        self.update = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(2 * WIDTH, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, labels: torch.Tensor):
        (source, target), x, labels = edges[0], x[0], labels[0]
        for message, update in zip(self.message, self.update, strict=True):
            sent = message(torch.cat([x[source], x[target]], 1)).relu()
            weight = torch_scatter.scatter_softmax(sent, target, 0, dim_size=NODES)
            total = torch_scatter.scatter(sent * weight, target, 0, dim_size=NODES, reduce="sum")
            x = update(torch.cat([x, total], 1)).tanh()
        largest, _ = torch_scatter.scatter_max(x, torch.arange(NODES) // 3, 0, dim_size=2)
        mean = torch_scatter.scatter_mean(x, torch.arange(NODES) // 3, 0, dim_size=2)
        logits = self.head(torch.cat([largest, mean], 1))
        return logits, F.cross_entropy(logits, labels)


def _graphs(rows: int) -> tuple[torch.Tensor, ...]:
    """Returns nodes, edges, and labels of both halves of each graph."""
    return (
        torch.randn(rows, NODES, WIDTH),
        torch.randint(NODES, (rows, 2, EDGES)),
        torch.randint(3, (rows, 2)),
    )


def test_message_passing_network_when_trained_then_equals_the_plain_loop() -> None:
    assert_same_training(
        MessagePassing(), _graphs, Setting("sharded", accumulation=2), rows=1, num_updates=4
    )


def test_spline_convolution_when_trained_then_the_packages_autograd_is_asked() -> None:
    """The operator has no ATen form."""
    spline = pytest.importorskip("torch_spline_conv")
    pseudo, weight = torch.rand(EDGES, 2), torch.randn(25, WIDTH, 3)
    x = torch.randn(EDGES, WIDTH)
    sizes, is_open = torch.tensor([5, 5]), torch.tensor([1, 1], dtype=torch.uint8)

    def function(pseudo, x, sizes, is_open, weight):
        basis, index = spline.spline_basis(pseudo, sizes, is_open, 1)
        return poptorch.identity_loss(
            spline.spline_weighting(x, weight, basis, index).square(), "sum"
        )

    (after,) = trained(function, [weight], [(pseudo, x, sizes, is_open)])
    leaf = weight.clone().requires_grad_()
    basis, index = spline.spline_basis(pseudo, sizes, is_open, 1)
    spline.spline_weighting(x, leaf, basis, index).square().sum().backward()
    torch.testing.assert_close(after, weight - 0.1 * leaf.grad, rtol=1e-4, atol=1e-4)
