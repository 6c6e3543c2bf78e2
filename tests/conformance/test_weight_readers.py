"""Readers of trained weights that bypass Python attributes receive the newest weights."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import poptorch_emu as poptorch

pytestmark = [
    pytest.mark.feature("trainingModel", fidelity="exact"),
    pytest.mark.filterwarnings("ignore"),
]


class Model(torch.nn.Module):
    """A small classifier with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.last = torch.nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


class WithLoss(torch.nn.Module):
    """Adds the loss."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        z = self.model(x)
        return z, F.cross_entropy(z, y)


torch.manual_seed(0)
X, Y = torch.randn(16, 8), torch.randint(3, (16,))


def saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def in_script_file(model: torch.nn.Module) -> torch.nn.Module:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    return torch.jit.load(file)


def in_inference_mode(model: Model) -> torch.Tensor:
    with torch.inference_mode():
        return model(X).clone()


def quantised(model: Model) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.qconfig = torch.ao.quantization.get_default_qconfig("x86")
        prepared = torch.ao.quantization.prepare(model)
        prepared(X)
        return torch.ao.quantization.convert(prepared).last.weight().dequantize()


def functional(model: Model) -> torch.Tensor:
    return torch.func.functional_call(model, dict(model.named_parameters()), (X,))


READERS: dict[str, Callable[[Model], torch.Tensor]] = {
    "jit.script": lambda model: torch.jit.script(model)(X),
    "jit.script of a part": lambda model: torch.jit.script(model.first)(X),
    "jit.trace": lambda model: torch.jit.trace(model, X)(X),
    "jit.trace of a part": lambda model: torch.jit.trace(model.first, X)(X),
    "jit.freeze": lambda model: torch.jit.freeze(torch.jit.script(model))(X),
    "jit.save": lambda model: in_script_file(model.first)(X),
    "export": lambda model: torch.export.export(model, (X,)).module()(X),
    "fx": lambda model: torch.fx.symbolic_trace(model)(X),
    "deepcopy": lambda model: copy.deepcopy(model)(X),
    "torch.save": lambda model: saved(model)(X),
    "pickle of a part": lambda model: pickle.loads(pickle.dumps(model.first))(X),
    "state of a part": lambda model: saved(model.last.state_dict())["weight"],
    "parameters_to_vector": lambda model: torch.nn.utils.parameters_to_vector(model.parameters()),
    "DataParallel": lambda model: torch.nn.DataParallel(model)(X),
    "AveragedModel": lambda model: torch.optim.swa_utils.AveragedModel(model)(X),
    "functional_call": functional,
    "vmap": lambda model: torch.func.vmap(lambda row: model.first(row))(X),
    "grad": lambda model: torch.func.grad(lambda rows: model(rows).sum())(X),
    "inference mode": in_inference_mode,
    "quantisation": quantised,
}


def trained() -> tuple[Model, Callable[[], None], Model]:
    """Returns a model that trains on the device, a function that trains it further, and a copy."""
    torch.manual_seed(1)
    model, twin = WithLoss(Model()), WithLoss(Model())
    twin.load_state_dict(model.state_dict())
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    options = poptorch.Options().showCompilationProgressBar(False)
    training = poptorch.trainingModel(model, options, sgd)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)

    def step() -> None:
        model.train()
        twin.train()
        optimizer.zero_grad()
        twin(X, Y)[1].backward()
        optimizer.step()
        training(X, Y)
        model.eval()
        twin.eval()

    step()
    step()
    return model.model, step, twin.model


@pytest.mark.parametrize("reader", READERS)
def test_weights_when_read_after_training_then_are_the_trained_ones(reader: str) -> None:
    model, _, twin = trained()
    found = READERS[reader](model)
    torch.testing.assert_close(found, READERS[reader](twin), rtol=1e-5, atol=1e-5)


def test_script_when_the_model_trains_on_and_is_read_then_has_the_weights_of_each_step() -> None:
    model, step, twin = trained()
    script, expected = torch.jit.script(model.first), torch.jit.script(twin.first)
    for _ in range(2):
        step()
        model.last.bias.sum()  # TorchScript shares the memory, so reading any tensor is enough.
        torch.testing.assert_close(script(X), expected(X), rtol=1e-5, atol=1e-5)
