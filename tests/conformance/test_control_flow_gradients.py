"""Gradients through `for_loop` and `cond` (api.md §12.3), against plain autograd."""

import pytest
import torch
from support.flow_models import quiet_options, train_weight
from support.helpers import Setting, plain_step

import poptorch_emu as poptorch

X = torch.tensor([[1.0, 2.0, -3.0]])


def plain_loop(count, body, inputs):
    for _ in range(count):
        result = body(*inputs)
        inputs = list(result) if isinstance(result, (list, tuple)) else [result]
    return inputs


def plain_cond(condition, then_body, then_inputs, else_body, else_inputs):
    result = then_body(*then_inputs) if condition else else_body(*else_inputs)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def simple_loop(model, x, loop, cond):
    (y,) = loop(4, lambda y: torch.tanh(y * model.weight + x), [x])
    return y.square().sum()


def carried_weight(model, x, loop, cond):
    y, w = loop(3, lambda y, w: (y * w, w + 0.1 * y.sum()), [x, model.weight * 2])
    return (y + w).sum()


def counted_loop(model, x, loop, cond):
    start = torch.zeros((), dtype=torch.int64, device=x.device)
    y, _ = loop(3, lambda y, i: (y * model.weight * (i + 1), i + 1), [x, start])
    return y.sum()


def dependent_captures(model, x, loop, cond):
    doubled = model.weight * 2
    (y,) = loop(3, lambda y: y * model.weight + doubled, [x])
    return (y * doubled).sum()


def one_branch(model, x, loop, cond):
    (y,) = cond(
        x.sum() > 0, lambda a: torch.exp(a), [x * model.weight], lambda: model.weight * x**2, []
    )
    return y.sum()


def changed_in_place(model, x, loop, cond):
    def body(y):
        y *= model.weight
        y += 1
        return y

    y = x * model.weight
    (z,) = loop(3, body, [y.clone()])
    return (z * y).sum()


def returned_capture(model, x, loop, cond):
    doubled = model.weight * 2
    (y,) = cond(x.sum() > 0, lambda: doubled, [], lambda a: a, [model.weight])
    (z,) = loop(2, lambda z: doubled * z, [y])
    return (y * z).sum()


def nested(model, x, loop, cond):
    def body(y, total):
        def twice(a):
            return loop(2, lambda z: torch.sin(z * model.weight), [a])

        (y,) = cond(y.sum() > 0, twice, [y], lambda: y * model.weight - total, [])
        return y, total + y.sum() * model.weight[0]

    y, total = loop(3, body, [x, x.sum()])
    return y.sum() + total


@pytest.mark.feature("for_loop in training", fidelity="exact")
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["positive", "negative"])
@pytest.mark.parametrize(
    "function",
    [
        simple_loop,
        carried_weight,
        counted_loop,
        dependent_captures,
        one_branch,
        changed_in_place,
        returned_capture,
        nested,
    ],
)
def test_gradient_when_through_control_flow_then_equals_plain_autograd(function, sign):
    x = torch.tensor([[0.3, 0.7, 1.1]]) * sign

    def forward(model, x):
        return poptorch.identity_loss(function(model, x, poptorch.for_loop, poptorch.cond), "none")

    weight = torch.tensor([0.5, -0.9, 1.2])
    gradient = train_weight(forward, x, weight=weight)
    plain = torch.nn.Module()
    plain.weight = torch.nn.Parameter(weight.clone())
    function(plain, x, plain_loop, plain_cond).backward()
    torch.testing.assert_close(gradient, plain.weight.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.feature("for_loop in training", fidelity="exact")
def test_gradient_when_a_loop_draws_numbers_then_backward_uses_the_same():
    def forward(model, x):
        masks = torch.zeros(4, 3, device="ipu")

        def body(y, masks, index):
            noise = torch.rand(3, device="ipu")
            row = torch.arange(4, device="ipu").reshape(4, 1) == index
            return y * noise * model.weight, torch.where(row, noise, masks), index + 1

        start = torch.zeros((), dtype=torch.int64, device="ipu")
        y, masks, _ = poptorch.for_loop(4, body, [x, masks, start])
        return poptorch.identity_loss(y.sum(), "none"), masks

    weight = torch.tensor([0.5, -0.9, 1.2])
    kept = {}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(weight.clone())

        def forward(self, x):
            return forward(self, x)

    model = Model()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    training = poptorch.trainingModel(model, quiet_options(), optimizer)
    _, kept["masks"] = training(X)
    gradient = weight - model.weight.detach()
    plain = weight.clone().requires_grad_()
    (X * kept["masks"].prod(0) * plain**4).sum().backward()
    assert len(kept["masks"].unique()) == 12
    torch.testing.assert_close(gradient, plain.grad, rtol=1e-5, atol=1e-6)


class _TwoStages(torch.nn.Module):
    """Two layers on two IPUs with a loop in each; the loops may be plain Python."""

    def __init__(self, loop):
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.second = torch.nn.Linear(4, 4)
        self.loop = loop

    def forward(self, x, target):
        poptorch.Block.start("first", ipu_id=0)
        x = self.first(x)
        (x,) = self.loop(2, lambda y: torch.tanh(y), [x])
        poptorch.Block.start("second", ipu_id=1)
        (x,) = self.loop(3, lambda y: torch.tanh(self.second(y)) + y, [x])
        return x, torch.nn.functional.mse_loss(x, target)


@pytest.mark.feature("for_loop in training", fidelity="exact")
@pytest.mark.parametrize("strategy", ["pipelined", "sharded"])
def test_gradient_when_loops_are_in_two_stages_then_training_equals_plain(strategy):
    setting = Setting(strategy, accumulation=3, iterations=2)
    emulated, plain = _TwoStages(poptorch.for_loop), _TwoStages(plain_loop)
    plain.load_state_dict(emulated.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    training = poptorch.trainingModel(
        emulated, setting.options(), poptorch.optim.SGD(emulated.parameters(), lr=0.1)
    )
    for _ in range(2):
        batch = torch.randn(6, 3), torch.randn(6, 4)
        _, losses = training(*batch)
        expected = plain_step(plain, optimizer, batch, setting)
        torch.testing.assert_close(losses.reshape(-1), expected, rtol=1e-5, atol=1e-6)
    training.destroy()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(emulated.state_dict()[name], value, rtol=1e-5, atol=1e-6)
