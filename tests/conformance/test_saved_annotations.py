"""Modules with block annotations are copied, pickled and saved, wrapped or not."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("BlockFunction", fidelity="exact")

X, Y = torch.linspace(-1, 1, 8).reshape(4, 2), torch.ones(4, 1)


@poptorch.BlockFunction("function", ipu_id=0)
def doubled(value: torch.Tensor) -> torch.Tensor:
    """Returns twice its argument."""
    return value * 2


def halved(value: torch.Tensor) -> torch.Tensor:
    return value / 2


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def loss_of(self, value: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
        return value if target is None else nn.functional.mse_loss(value, target)


class Decorated(Base):
    @poptorch.BlockFunction("forward", ipu_id=0)
    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        return self.loss_of(self.layer(x), target)


class HoldsFunctions(Base):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = doubled, poptorch.BlockFunction("own", ipu_id=0)(halved)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        value = self.second(self.first(self.layer(x)))
        with poptorch.Block("loss", ipu_id=0):
            return self.loss_of(value, target)


class HoldsMethod(Base):
    def __init__(self) -> None:
        super().__init__()
        self.start = poptorch.BlockFunction("method", ipu_id=0)(self.first_part)

    def first_part(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        value = self.start(x)
        with poptorch.Block("loss", ipu_id=0):
            return self.loss_of(value, target)


class HoldsLayers(Base):
    def __init__(self) -> None:
        super().__init__()
        self.last = poptorch.LegacyBeginBlockFn(nn.Linear(1, 1), "last", 0)
        poptorch.BeginBlock(self.layer, "first", 0)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        return self.loss_of(self.last(self.layer(x)), target)


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def with_loaded_state(model: nn.Module, kind: type[nn.Module]) -> nn.Module:
    fresh = kind()
    fresh.load_state_dict(model.state_dict())
    return fresh


WAYS = {
    "save": lambda model, _: saved(model),
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, _: copy.deepcopy(model),
    "state": with_loaded_state,
}


def trained(model: nn.Module) -> poptorch.PoplarExecutor:
    options = poptorch.Options().showCompilationProgressBar(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    training(X, Y)
    return training


@pytest.mark.parametrize("when", ["plain", "trained", "destroyed"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("kind", [Decorated, HoldsFunctions, HoldsMethod, HoldsLayers])
def test_annotated_model_when_copied_then_equal_and_apart(
    kind: type[Base], way: Callable[..., nn.Module], when: str
) -> None:
    model = kind()
    training = trained(model) if when != "plain" else None
    if when == "destroyed":
        training.destroy()
    copied = way(model, kind)
    assert torch.equal(copied(X), model(X))
    with torch.no_grad():
        copied.layer.weight.add_(1)
    assert not torch.equal(copied(X), model(X))
    assert torch.isfinite(trained(copied)(X, Y))


def test_decorated_function_then_keeps_name_text_signature_and_identity() -> None:
    assert doubled.__name__ == "doubled" and doubled.__doc__ == "Returns twice its argument."
    assert list(inspect.signature(doubled).parameters) == ["value"]
    assert list(inspect.signature(Decorated().forward).parameters) == ["x", "target"]
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert copy.deepcopy(doubled) is doubled


def test_legacy_function_then_has_its_id() -> None:
    named = poptorch.LegacyBeginBlockFn(nn.ReLU(), "mine", 3)
    assert (named._user_id, named._ipu_id) == ("mine", 3)
    unnamed: Any = poptorch.LegacyBeginBlockFn(nn.ReLU(), ipu_id=0)
    assert unnamed._user_id is None
    poptorch.inferenceModel(unnamed, poptorch.Options().showCompilationProgressBar(False))(X)
    assert unnamed._user_id == "0"
