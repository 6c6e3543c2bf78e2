"""Stages as modules: names, operations, gradients, recomputation, random operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import poptorch_emu as poptorch
from poptorch_emu import emulator


class Net(nn.Module):
    """One stage; a given function runs between its layers."""

    def __init__(self, middle: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("offset", torch.arange(4.0))
        self.register_buffer("order", torch.tensor([3, 1, 0, 2]))
        self.middle = middle

    def forward(self, x: torch.Tensor) -> Any:
        value = self.middle(self.first(x) + self.offset)[:, self.order]
        return F.mse_loss(self.second(value), x)


def pipeline_of(model: nn.Module, rows: int = 4) -> Any:
    options = poptorch.Options().showCompilationProgressBar(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, options, optimizer)
    executor.compile(torch.randn(rows, 4))
    return emulator.export_pipeline(executor)


class Count(TorchDispatchMode):
    """Counts the calls of one operation."""

    def __init__(self, target: Any) -> None:
        super().__init__()
        self.target, self.calls = target, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func is self.target
        return func(*args, **(kwargs or {}))


def test_stage_module_when_made_then_keeps_names_and_values_of_the_user() -> None:
    model = Net(torch.tanh)
    module = pipeline_of(model).stage_module(0)
    own, users = module.state_dict(), model.state_dict()
    assert own.keys() == users.keys()
    for name, value in users.items():
        assert torch.equal(own[name], value)
        assert own[name].data_ptr() != value.data_ptr()


def test_stage_module_when_read_then_has_operations_of_aten_alone() -> None:
    module = pipeline_of(Net(torch.tanh)).stage_module(0)
    assert isinstance(module, torch.fx.GraphModule)
    calls = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert calls and all(call.namespace == "aten" for call in calls)


def test_stage_module_when_differentiated_then_agrees_with_the_user_model() -> None:
    model, x = Net(torch.tanh), torch.randn(4, 4)
    module = pipeline_of(model).stage_module(0)
    (loss,) = module(input_0=x)
    loss.backward()
    expected = torch.autograd.grad(model(x), list(model.parameters()))
    own = dict(module.named_parameters())
    for (name, _), gradient in zip(model.named_parameters(), expected, strict=True):
        assert torch.equal(own[name].grad, gradient)


def test_stage_module_when_user_checkpoints_then_backward_runs_forward_again() -> None:
    def middle(value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(lambda v: torch.tanh(v) * v, value, use_reentrant=False)
        return result

    model, x = Net(middle), torch.randn(4, 4)
    module = pipeline_of(model).stage_module(0)
    with Count(torch.ops.aten.tanh.default) as count:
        (loss,) = module(input_0=x)
        assert count.calls == 1
        loss.backward()
    assert count.calls == 2
    expected = torch.autograd.grad(model(x), model.first.weight)[0]
    assert torch.equal(module.first.weight.grad, expected)


@pytest.mark.parametrize(
    ("middle", "operation"),
    [
        (lambda v: F.dropout(v, 0.5), torch.ops.aten.native_dropout.default),
        (lambda v: v + torch.rand_like(v), torch.ops.aten.uniform.default),
        (lambda v: v * torch.randn(4), torch.ops.aten.normal_functional.default),
        (lambda v: v * torch.bernoulli(torch.full((4,), 0.5)), torch.ops.aten.bernoulli.default),
        (lambda v: v * torch.randint(0, 3, (4,)), torch.ops.aten.randint.low),
        (lambda v: v[:, torch.randperm(4)], torch.ops.aten.randperm.default),
    ],
    ids=["dropout", "uniform", "normal", "bernoulli", "randint", "randperm"],
)
def test_stage_module_when_forward_is_random_then_pytorchs_seed_decides(
    middle: Any, operation: Any
) -> None:
    module, x = pipeline_of(Net(middle)).stage_module(0), torch.randn(4, 4)
    assert operation in [node.target for node in module.graph.nodes]
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        (loss,) = module(input_0=x)
        losses.append(loss.item())
    assert losses[0] == losses[1]


def test_stage_module_when_for_another_device_then_everything_is_there() -> None:
    module = pipeline_of(Net(lambda v: v + torch.zeros(4))).stage_module(0, "meta")
    (loss,) = module(input_0=torch.empty(4, 4, device="meta"))
    assert loss.device.type == "meta"
