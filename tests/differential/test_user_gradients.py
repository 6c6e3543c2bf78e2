"""User code in backward: functions, hooks, modes (beyond PopTorch)."""

from __future__ import annotations

import copy

import pytest
import torch
from support.helpers import Setting, assert_same_training
from torch import nn

import poptorch_emu as poptorch


class Stages(nn.Module):
    """Calls `inner` in the first of two stages."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.bias = nn.Parameter(torch.randn(4))
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, target: torch.Tensor):
        with poptorch.Block(ipu_id=0):
            x = self.inner(self, x + self.bias)
        with poptorch.Block(ipu_id=1):
            return x, nn.functional.cross_entropy(self.head(x), target)


def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 4), torch.randint(0, 3, (rows,))


class Factories(torch.autograd.Function):
    """A function whose backward creates tensors without naming a device."""

    @staticmethod
    def forward(ctx, x):
        return torch.zeros(4) + x

    @staticmethod
    def backward(ctx, gradient):
        return torch.ones(4) * gradient * torch.tensor([1.0, 2.0, 3.0, 4.0])


class OfModule(torch.autograd.Function):
    """A function whose backward reads a parameter of the module."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x @ module.weight

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.module.weight.t(), None


class UnusedResult(torch.autograd.Function):
    """Has a gradient formula that asks for unused results and for unneeded gradients."""

    @staticmethod
    def forward(ctx, x, weight, scale):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        ctx.scale = scale
        return x @ weight, x * scale

    @staticmethod
    def backward(ctx, of_product, of_scaled):
        x, weight = ctx.saved_tensors
        assert of_scaled is None and ctx.needs_input_grad == (False, True, False)
        return None, x.t() @ of_product * ctx.scale, None


def penalised(self, x):
    value = torch.tanh(x @ self.weight).sum()
    (slope,) = torch.autograd.grad(value, x, create_graph=True)
    return x + slope


INNER = {
    "factories": lambda self, x: Factories.apply(x),
    "parameter": lambda self, x: OfModule.apply(x, self) + x @ self.weight,
    "unused result": lambda self, x: UnusedResult.apply(x.detach(), self.weight, 2.0)[0] + x,
    "gradient penalty": penalised,
    "per-sample functions": lambda self, x: torch.vmap(lambda row: row @ self.weight)(x),
}


@pytest.mark.feature("Gradients written by the user", fidelity="exact")
@pytest.mark.parametrize("name", INNER)
def test_function_of_the_user_then_trains_as_in_eager(name) -> None:
    torch.manual_seed(4)

    def inner(self, x):
        return INNER[name](self, x)

    assert_same_training(Stages(inner), batch, Setting(accumulation=3), num_updates=3)


def train_both(change, around=torch.enable_grad) -> None:
    """Trains two equal models, prepared by `change`, here and in plain PyTorch."""
    torch.manual_seed(5)
    emulated = Stages(lambda self, x: self.layer(x) @ self.weight)
    plain = copy.deepcopy(emulated)
    change(emulated)
    change(plain)
    optimizer = poptorch.optim.SGD(emulated.parameters(), lr=0.1)
    model = poptorch.trainingModel(emulated, Setting("sharded").options(), optimizer)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        data = batch(3)
        with around():
            model(*data)
        reference.zero_grad()
        plain(*data)[1].backward()
        reference.step()
    model.destroy()
    torch.testing.assert_close(emulated.state_dict(), plain.state_dict())


def hook_parameters(model: Stages) -> None:
    model.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    model.bias.register_hook(lambda gradient: None)
    model.bias.register_hook(lambda gradient: gradient * model.bias)
    model.layer.weight.requires_grad_(False)


def hook_modules(model: Stages) -> None:
    model.layer.register_full_backward_hook(
        lambda module, of_inputs, _: (of_inputs[0] * module.weight.sum(),)
    )
    model.layer.register_forward_hook(lambda *values: values[2] * 2)


@pytest.mark.feature("Gradients written by the user", fidelity="exact")
@pytest.mark.parametrize("change", [hook_parameters, hook_modules])
def test_hooks_then_change_gradients_as_in_eager(change) -> None:
    train_both(change)


@pytest.mark.feature("Gradients written by the user", fidelity="refused")
def test_hook_for_an_accumulated_gradient_then_error_names_the_parameter() -> None:
    def change(model: Stages) -> None:
        model.bias.register_post_accumulate_grad_hook(lambda _: None)

    with pytest.raises(poptorch.Error, match="Parameter bias has a hook .* register_hook"):
        train_both(change)


@pytest.mark.parametrize("around", [torch.inference_mode, torch.no_grad])
def test_training_call_when_gradients_are_off_around_it_then_still_trains(around) -> None:
    train_both(lambda model: None, around)


def compile_a_part(model: Stages) -> None:
    model.layer = torch.compile(model.layer, backend="eager")


def compile_in_place(model: Stages) -> None:
    model.layer.compile(backend="eager")


@pytest.mark.feature("torch.compile in forward", fidelity="accepted")
@pytest.mark.filterwarnings("ignore")  # PyTorch warns about hooks and about itself.
@pytest.mark.parametrize("change", [compile_a_part, compile_in_place])
def test_module_that_torch_compiles_then_runs_as_it_is_written(change) -> None:
    try:
        train_both(change)
    finally:  # Dynamo turns the checks of distributions off.
        torch.distributions.Distribution.set_default_validate_args(__debug__)
