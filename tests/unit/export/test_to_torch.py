"""A trained model can continue in plain PyTorch as if it had been trained there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.helpers import assert_near
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

OPTIMIZERS = {
    "SGD": {"lr": 0.1},
    "SGD with momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "SGD with one accumulator": {"lr": 0.1, "momentum": 0.9, "use_combined_accum": True},
    "SGD by Nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.01, "weight_decay": 0.1},
    "AdamW": {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6},
    "AdamW without bias correction": {"lr": 0.01, "bias_correction": False},
    "RMSprop": {"lr": 0.01, "alpha": 0.9, "momentum": 0.5},
    "RMSprop with a mean": {"lr": 0.01, "centered": True},
}
EMULATED_ONLY = ("use_combined_accum", "bias_correction")


class Net(nn.Module):
    """A layer, tanh and a norm. Without the tanh, the norm would cancel the layer's bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        value = self.norm(torch.tanh(self.layer(x)))
        return value, F.cross_entropy(value, labels)


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(6, 4), torch.randint(0, 4, (6,))) for _ in range(count)]


def plain_steps(model: nn.Module, optimizer: Any, data: Any) -> None:
    for batch in data:
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


def executor_of(model: nn.Module, name: str, arguments: dict[str, Any]) -> Any:
    options = poptorch.Options().showCompilationProgressBar(False)
    kind: Any = getattr(poptorch.optim, name.split()[0])
    return poptorch.trainingModel(model, options, kind(model.parameters(), **arguments))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_to_torch_when_training_goes_on_then_is_as_if_it_never_was_emulated(name: str) -> None:
    model, data = Net(), batches(6)
    plain = copy.deepcopy(model)
    arguments = OPTIMIZERS[name]
    known = {key: value for key, value in arguments.items() if key not in EMULATED_ONLY}
    optimizer = getattr(torch.optim, name.split()[0])(plain.parameters(), **known)
    plain_steps(plain, optimizer, data)

    executor = executor_of(model, name, arguments)
    for batch in data[:3]:
        executor(*batch)
    moved, twin = emulator.to_torch(executor)
    assert type(moved) is Net and all(type(p) is nn.Parameter for p in moved.parameters())
    plain_steps(moved, twin, data[3:])
    for key, value in plain.state_dict().items():
        if value.is_floating_point():
            assert_near(moved.state_dict()[key], value, key)


def test_to_torch_when_called_then_the_executor_is_untouched() -> None:
    model, data = Net(), batches(3)
    executor = executor_of(model, "Adam", {"lr": 0.01})
    twin = executor_of(other := copy.deepcopy(Net()), "Adam", {"lr": 0.01})
    other.load_state_dict(model.state_dict())
    for index, batch in enumerate(data):
        executor(*batch)
        twin(*batch)
        if index == 1:
            plain_steps(*emulator.to_torch(executor), data)
    assert torch.equal(model.layer.weight, other.layer.weight)


def test_to_torch_when_model_does_not_train_then_has_no_optimizer() -> None:
    executor = poptorch.inferenceModel(nn.Linear(2, 2))
    executor.compile(torch.ones(1, 2))
    model, optimizer = emulator.to_torch(executor)
    assert type(model) is nn.Linear and optimizer is None


def test_to_torch_when_not_compiled_then_says_so() -> None:
    with pytest.raises(poptorch.Error, match="Model has not been compiled"):
        emulator.to_torch(poptorch.inferenceModel(nn.Linear(2, 2)))


FORMULAS = {
    "LAMB": {"lr": 0.01},
    "LAMB without bias correction": {"lr": 0.01, "bias_correction": False},
    "SGD with dampening": {"lr": 0.1, "momentum": 0.9, "dampening": 0.5},
    "SGD without momentum, with dampening": {"lr": 0.1, "dampening": 0.5},
    "RMSprop of TensorFlow": {"lr": 0.01, "use_tf_variant": True},
    "Adam in float16": {"lr": 0.01, "first_order_momentum_accum_type": torch.float16},
    "AdamW that clips": {"lr": 0.01, "max_grad_norm": 0.1},
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("num_updates", [0, 3])
def test_to_torch_when_torch_has_no_such_optimizer_then_goes_on_by_its_formulas(
    name: str, num_updates: int
) -> None:
    model, data = Net(), batches(6)
    executor = executor_of(model, name, FORMULAS[name])
    executor.compile(*data[0])
    for batch in data[:num_updates]:
        executor(*batch)
    moved, twin = emulator.to_torch(executor)
    assert isinstance(twin, torch.optim.Optimizer)
    plain_steps(moved, twin, data[num_updates:])
    for batch in data[num_updates:]:
        executor(*batch)
    for key, value in executor.model.state_dict().items():
        assert_near(moved.state_dict()[key], value.clone(), key)


def test_to_torch_when_loss_is_scaled_then_says_what_does_that() -> None:
    executor = executor_of(Net(), "Adam", {"lr": 0.1, "loss_scaling": 8.0})
    executor.compile(*batches(1)[0])
    with pytest.raises(poptorch.Error, match="loss_scaling=8.0.*torch.amp.GradScaler"):
        emulator.to_torch(executor)
