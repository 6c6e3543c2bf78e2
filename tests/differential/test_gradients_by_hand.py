"""Training equals the plain loop, even if user code adds to the `.grad` of parameters itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Gradients added by hand", fidelity="exact")

ROWS = 12
X, Y = torch.randn(ROWS, 3), torch.randn(ROWS, 3)


class Again(torch.autograd.Function):
    """Recomputes a module in backward, and assigns its parameters' gradients by `give`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Module, give: Callable) -> torch.Tensor:
        ctx.module, ctx.give = module, give
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return ctx.give(x, ctx.module(x), gradient, list(ctx.module.parameters())), None, None


def by_backward(x, y, gradient, parameters):
    y.backward(gradient)
    return x.grad


def by_two_calls(x, y, gradient, parameters):
    torch.autograd.backward([y], [gradient], retain_graph=True)
    y.backward(gradient * 0)
    return x.grad


def with_a_graph(x, y, gradient, parameters):
    (y * gradient).sum().backward(create_graph=True)
    return x.grad


def by_assignment(x, y, gradient, parameters):
    found, *others = torch.autograd.grad(y, [x, *parameters], gradient)
    for parameter, other in zip(parameters, others, strict=True):
        parameter.grad = other if parameter.grad is None else parameter.grad + other
    return found


def in_place(x, y, gradient, parameters):
    found, *others = torch.autograd.grad(y, [x, *parameters], gradient)
    for parameter, other in zip(parameters, others, strict=True):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad += other
    return found


def over_what_was_there(x, y, gradient, parameters):
    found, *others = torch.autograd.grad(y, [x, *parameters], gradient)
    for parameter, other in zip(parameters, others, strict=True):
        parameter.grad = other
    return found


def halving(x, y, gradient, parameters):
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)
    return by_backward(x, y, gradient, parameters)


def removing(x, y, gradient, parameters):
    for parameter in parameters:
        parameter.grad = None
    return by_backward(x, y, gradient, parameters)


class Model(nn.Module):
    """Computes `function` with three layers and a deep one."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function
        self.a, self.b, self.c = (nn.Linear(3, 3) for _ in range(3))
        self.deep = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.function(self, x), y)


WAYS = (
    by_backward,
    by_two_calls,
    with_a_graph,
    by_assignment,
    in_place,
    over_what_was_there,
    halving,
    removing,
)
# Models, by the place where they also use the recomputed module.
USES: dict[str, Callable] = {
    "alone": lambda m, x, give: m.c(Again.apply(m.a(x), m.deep, give)),
    "before": lambda m, x, give: m.c(Again.apply(m.b(m.a(x)), m.b, give)),
    "after": lambda m, x, give: m.b(Again.apply(m.a(x), m.b, give)),
    "before and after": lambda m, x, give: m.b(Again.apply(m.b(m.a(x)), m.b, give)),
    "twice": lambda m, x, give: m.c(Again.apply(Again.apply(m.a(x), m.b, give), m.b, give)),
}


def check(model: Model, opts: poptorch.Options, num_batches: int = 1, scaling: float = 1.0) -> None:
    """Trains for a step, and compares with the plain loop."""
    plain = copy.deepcopy(model)
    for x, y in zip(X.chunk(num_batches), Y.chunk(num_batches), strict=True):
        plain(x, y).backward()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0, loss_scaling=scaling)
    training = poptorch.trainingModel(model, opts, optimizer)
    training(X, Y)
    training.destroy()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        gradient = 0.0 if theirs.grad is None else theirs.grad / num_batches
        expected = theirs.detach() - gradient
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5, msg=f"{name} differs")


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_module_when_computed_again_in_backward_then_is_trained(way: Callable, use: str) -> None:
    check(Model(lambda m, x: USES[use](m, x, way)), options())


@pytest.mark.parametrize("use", USES)
def test_module_when_computed_again_with_several_batches_and_scaling_then_is_trained(
    use: str,
) -> None:
    model = Model(lambda m, x: USES[use](m, x, by_backward))
    check(model, options(accumulation=3), num_batches=3, scaling=128.0)


class Reversible(torch.autograd.Function):
    """Halves that are added to each other, so that backward recomputes inputs from outputs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, f: nn.Module, g: nn.Module) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        with torch.no_grad():
            first = first + f(second)
            second = second + g(first)
        ctx.f, ctx.g, ctx.result = f, g, torch.cat([first, second], -1)
        return ctx.result.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        first, second = ctx.result.chunk(2, -1)
        of_first, of_second = gradient.chunk(2, -1)
        for module in (ctx.g, ctx.f):
            with torch.enable_grad():
                first = first.detach().requires_grad_()
                inner = module(first)
                inner.backward(of_second)
            of_first, of_second = of_second, of_first + first.grad
            first, second = second - inner.detach(), first.detach()
        return torch.cat([of_first, of_second], -1), None, None


def reversible(model: Model, x: torch.Tensor) -> torch.Tensor:
    halves = torch.cat([model.a(x), x], -1)
    halves = Reversible.apply(halves, model.b, model.deep)
    return model.c(Reversible.apply(halves, model.b, model.b)[:, :3])


class Nest(nn.Module):
    """Uses a module both recomputed and as it is."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Again.apply(x, self.module, by_backward) + self.module(x)


def by_hook_of_a_result(model: Model, x: torch.Tensor) -> torch.Tensor:
    def add(gradient: torch.Tensor) -> None:
        bias = model.c.bias
        bias.grad = gradient.sum(0) if bias.grad is None else bias.grad + gradient.sum(0)

    y = model.a(x)
    y.register_hook(add)
    return model.c(model.b(y))


def by_reading(model: Model, x: torch.Tensor) -> torch.Tensor:
    y = model.b(model.a(x))
    y.register_hook(lambda gradient: gradient * (2.0 if model.c.weight.grad is not None else 3.0))
    return model.c(y)


def in_forward(model: Model, x: torch.Tensor) -> torch.Tensor:
    (model.b(x) ** 2).mean().backward()
    return model.c(model.b(model.a(x)))


def assigned_in_forward(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.b.weight.grad = torch.full_like(model.b.weight, 0.5)
    return model.c(model.b(model.a(x)))


@pytest.mark.parametrize("scaling", [1.0, 64.0])
@pytest.mark.parametrize(
    "function",
    [
        reversible,
        lambda m, x: m.c(Again.apply(m.a(x), Nest(m.deep), by_backward)),
        by_hook_of_a_result,
        by_reading,
        in_forward,
        assigned_in_forward,
    ],
    ids=["reversible", "nested", "hook", "reading", "forward", "assigned"],
)
def test_grad_when_changed_by_hand_then_training_equals_the_plain_loop(
    function: Callable, scaling: float
) -> None:
    check(Model(function), options(), scaling=scaling)


def test_module_when_computed_again_in_a_stage_then_is_trained_also_from_the_cache(
    tmp_path: Path,
) -> None:
    def staged(model: Model, x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("first", ipu_id=0):
            x = model.a(x)
        with poptorch.Block("second", ipu_id=1):
            x = Again.apply(x, model.deep, by_backward)
        poptorch.Block.start("last", ipu_id=1)
        return model.c(x)

    model = Model(staged)
    for _ in range(2):
        opts = options(accumulation=6)
        opts.enableExecutableCaching(str(tmp_path))
        check(copy.deepcopy(model), opts, num_batches=6)


def test_parameter_when_frozen_or_hooked_then_is_as_in_the_plain_loop() -> None:
    model = Model(lambda m, x: m.c(Again.apply(m.b(m.a(x)), m.b, by_backward)))
    model.b.weight.requires_grad_(False)
    check(model, options())
