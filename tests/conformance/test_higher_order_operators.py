"""PyTorch's operators that take functions, and derivatives in forward mode, as plain PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.autograd.forward_ad as forward_mode
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_rows
from torch.func import hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.nn.attention.flex_attention import flex_attention

import poptorch_emu as poptorch

# PyTorch runs these operators by Dynamo, which warns about parts of PyTorch and Python.
pytestmark = [
    pytest.mark.feature("Higher-order operators of PyTorch", fidelity="exact"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

X = torch.linspace(-1, 2, 6).reshape(2, 3)


def in_forward_mode(x, function):
    with forward_mode.dual_level():
        dual = forward_mode.make_dual(x, torch.ones_like(x))
        return forward_mode.unpack_dual(function(dual)).tangent


def nested(x):
    return torch.cond(
        x.sum() > 0,
        lambda v: torch.cond(v.max() > 1, lambda w: w * 3, lambda w: w * 4, (v,)),
        lambda v: v - 1,
        (x,),
    )


# Functions of a linear layer and its input, as in the model of all tests below.
FUNCTIONS = {
    "cond": lambda layer, x: torch.cond(x.sum() > 0, layer, lambda v: v - 1, (x,)),
    "cond of what is outside": lambda layer, x: torch.cond(
        x.sum() > 0, lambda: layer(x).sin(), lambda: layer(x * 2)
    ),
    "cond of trees": lambda layer, x: torch.cond(
        x.sum() > 0,
        lambda tree: {"a": layer(tree["v"]), "b": (tree["v"] * 2,)},
        lambda tree: {"a": tree["v"] + 1, "b": (layer(tree["v"]),)},
        ({"v": x},),
    )["b"][0],
    "cond in cond": lambda layer, x: nested(layer(x)),
    "cond of one element": lambda layer, x: torch.cond(
        (x.sum() > 0).reshape(1), layer, torch.neg, (x,)
    ),
    "cond of a constant": lambda layer, x: torch.cond(x.dim() > 1, layer, torch.neg, (x,)),
    "while_loop that counts": lambda layer, x: while_loop(
        lambda i, v: i < 3,
        lambda i, v: (i + 1, layer(v).tanh()),
        (torch.zeros((), dtype=torch.int32), x),
    )[1],
    "scan": lambda layer, x: scan(lambda c, v: (c + layer(v), c * v), torch.ones(3), x)[1],
    "carry of scan": lambda layer, x: scan(lambda c, v: (layer(c) + v, c * v), torch.ones(3), x)[0],
    "scan backwards": lambda layer, x: scan(
        lambda c, v: (c + layer(v), c * v), torch.ones(3), x, reverse=True
    )[1],
    "scan of columns": lambda layer, x: scan(
        lambda c, v: (c + v, c * v), torch.ones(2), layer(x), dim=1
    )[1],
    "scan of trees": lambda layer, x: scan(
        lambda c, v: ({"s": c["s"] + v["a"], "t": c["t"] + 1}, [c["s"] * v["b"]]),
        {"s": torch.zeros(3), "t": torch.zeros(())},
        {"a": layer(x), "b": x * 2},
    )[1][0],
    "associative_scan": lambda layer, x: associative_scan(
        torch.add, layer(x), 0, combine_mode="generic"
    ),
    "map": lambda layer, x: map_rows(lambda v: layer(v) * 2, x),
    "jvp": lambda layer, x: jvp(layer, (x,), (torch.ones_like(x),))[1],
    "jvp of products": lambda layer, x: jvp(
        lambda v: (layer(v).tanh() @ x.t()).softmax(-1), (x,), (torch.ones_like(x),)
    )[1],
    "jacfwd": lambda layer, x: jacfwd(lambda v: layer(v).sin() * v)(x[0]),
    "jacrev": lambda layer, x: jacrev(lambda v: layer(v).sin() * v)(x[0]),
    "hessian": lambda layer, x: hessian(lambda v: (layer(v).sin() * v).sum())(x[0]),
    "vjp": lambda layer, x: vjp(lambda v: layer(v).sin(), x)[1](torch.ones_like(x))[0],
    "vmap of jacfwd": lambda layer, x: vmap(jacfwd(lambda v: layer(v).sin()))(x),
    "dual numbers": lambda layer, x: in_forward_mode(x, lambda v: layer(v).sin() * v),
    "functional.jvp": lambda layer, x: torch.autograd.functional.jvp(
        lambda v: layer(v).sin(), x, torch.ones_like(x), create_graph=True
    )[1],
    "functional.hessian": lambda layer, x: torch.autograd.functional.hessian(
        lambda v: (layer(v).sin() * v).sum(), x[0], create_graph=True
    ),
    "functional.jacobian": lambda layer, x: torch.autograd.functional.jacobian(
        lambda v: layer(v).sin(), x[0], strategy="forward-mode", vectorize=True
    ),
}


class Model(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(3, 3), function

    def forward(self, x):
        result = self.function(self.layer, x)
        return result, poptorch.identity_loss(result.square(), "mean")


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_function_of_functions_then_equals_plain_pytorch(function) -> None:
    model = Model(function)
    inference = poptorch.inferenceModel(model, options())
    for x in (X, -X):  # -X takes the other side of each branch.
        torch.testing.assert_close(inference(x)[0], model(x)[0], rtol=1e-5, atol=1e-6)


def written_out(layer, x):
    """Computes the same as `while_loop`; PyTorch's own derivative of `while_loop` differs."""
    for _ in range(3):
        x = layer(x).tanh()
    return x


NOT_TRAINED = {"functional.jacobian"}  # Plain PyTorch returns it without a gradient.


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - NOT_TRAINED))
def test_function_of_functions_in_training_then_equals_plain_pytorch(name: str) -> None:
    model = Model(FUNCTIONS[name])
    plain = copy.deepcopy(model)
    plain.function = {"while_loop that counts": written_out}.get(name, plain.function)
    training = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for x in (X, -X):
        training(x)
        optimizer.zero_grad()
        plain(x)[1].backward()
        optimizer.step()
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=1e-5, atol=1e-6)


REFUSED = {
    "while_loop": (
        lambda layer, x: while_loop(lambda v: v.sum() < 9, lambda v: (v * 2,), (x.exp(),))[0],
        "while_loop at .*poptorch.for_loop",
    ),
    "cond of other shapes": (
        lambda layer, x: torch.cond(x.sum() > 0, lambda v: v, lambda v: v[0], (x,)),
        "poptorch.cond at .*Both must have",
    ),
    "cond of other structures": (
        lambda layer, x: torch.cond(x.sum() > 0, lambda v: [v], lambda v: {"a": v}, (x,))[0],
        "torch.cond at .*same structure",
    ),
    "linearize": (
        lambda layer, x: linearize(layer, x)[1](x),
        "torch.func.linearize.*use torch.func.jvp",
    ),
    "flex_attention": (
        lambda layer, x: flex_attention(*3 * [layer(x)[None, None]])[0, 0],
        "FlexAttention",
    ),
}


@pytest.mark.parametrize(("function", "message"), REFUSED.values(), ids=REFUSED)
def test_function_that_cannot_be_captured_then_named_with_the_users_line(function, message) -> None:
    with pytest.raises(poptorch.Error, match=message) as error:
        poptorch.inferenceModel(Model(function), options())(X)
    assert "test_higher_order_operators.py:" in str(error.value)
