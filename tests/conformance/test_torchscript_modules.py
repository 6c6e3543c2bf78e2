"""Sub-modules of TorchScript: scripted, traced, frozen and loaded ones run as any other."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import poptorch_emu as poptorch

pytestmark = [
    pytest.mark.feature("TorchScript sub-modules", fidelity="exact"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Flow(nn.Module):
    """A module with a loop and a branch, which TorchScript keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("factor", torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in range(3):
            if index != 1:
                x = torch.tanh(self.linear(x)) * self.factor
        return x


class Recurrent(nn.Module):
    """A recurrent module, whose weights TorchScript keeps in a list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x.unsqueeze(1))[0].squeeze(1)


class Normal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


class Parallel(nn.Module):
    """A module that starts tasks of TorchScript, which run in threads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        task = torch.jit.fork(self.linear, x * 2)
        return self.linear(x) + torch.jit.wait(task)


class Decides(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return x
        return -x


class Model(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.head = nn.Linear(3, 2)

    def forward(self, x, y):
        x = self.head(self.part(x))
        return x, mse_loss(x, y)


def loaded(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


def traced(module: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.trace(module, X, check_trace=False)


TRAINED = {
    "scripted": torch.jit.script,
    "traced": traced,
    "loaded": lambda module: loaded(torch.jit.script(module)),
    "loaded trace": lambda module: loaded(traced(module)),
}
FIXED = {
    "frozen": lambda module: torch.jit.freeze(torch.jit.script(module)),
    "frozen trace": lambda module: torch.jit.freeze(traced(module)),
    "loaded frozen": lambda module: loaded(torch.jit.freeze(torch.jit.script(module))),
    "optimised": lambda module: torch.jit.optimize_for_inference(torch.jit.script(module)),
}


def made(kind: type[nn.Module], convert=lambda module: module, train: bool = True) -> Model:
    torch.manual_seed(0)
    model = Model(kind().train(train))
    model.part = convert(model.part)
    return model


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def trained(model: Model, num_steps: int = 3) -> poptorch.PoplarExecutor:
    training = poptorch.trainingModel(
        model, options(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    for _ in range(num_steps):
        training(X, torch.zeros(4, 2))
    return training


def plainly_trained(model: Model, num_steps: int = 3) -> Model:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(X, torch.zeros(4, 2))[1].backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("kind", [Flow, Recurrent, Normal])
@pytest.mark.parametrize("convert", TRAINED.values(), ids=TRAINED)
def test_training_when_a_part_is_torchscript_then_equals_plain_pytorch(kind, convert) -> None:
    model, plain = made(kind, convert), made(kind)
    plain.load_state_dict(model.state_dict())  # Tracing has run the batch norm once.
    plainly_trained(plain)
    trained(model)
    # TorchScript reads the weights here; Python has read none since the training.
    torch.testing.assert_close(model.part(X), plain.part(X), rtol=1e-5, atol=1e-6)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [Flow, Recurrent, Normal])
@pytest.mark.parametrize("convert", (TRAINED | FIXED).values(), ids=TRAINED | FIXED)
@pytest.mark.parametrize("num_calls", [0, 3], ids=["new", "optimised by its calls"])
def test_inference_when_a_part_is_torchscript_then_equals_plain_pytorch(
    kind, convert, num_calls: int
) -> None:
    model = made(kind, convert, train=False)
    for _ in range(num_calls):
        model(X, torch.zeros(4, 2))
    inference = poptorch.inferenceModel(model, options())
    for x in (X, 2 * X):
        result, _ = inference(x, torch.zeros(4, 2))
        expected, _ = made(kind, train=False)(x, torch.zeros(4, 2))
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("convert", FIXED.values(), ids=FIXED)
def test_training_when_a_part_is_frozen_then_the_others_are_trained(convert) -> None:
    model, plain = made(Flow, convert, train=False), made(Flow, train=False)
    plain.part.requires_grad_(False)
    plainly_trained(plain)
    trained(model)
    torch.testing.assert_close(model.head.weight, plain.head.weight)


def test_part_when_saved_after_training_then_has_the_trained_weights() -> None:
    model = made(Flow, torch.jit.script)
    training = trained(model)
    copy = loaded(model.part)
    training(X, torch.zeros(4, 2))
    assert not torch.equal(copy(X), model.part(X))
    torch.testing.assert_close(copy(X), plainly_trained(made(Flow)).part(X))


def test_value_that_torchscript_reads_then_refused_with_the_users_line() -> None:
    with pytest.raises(poptorch.Error, match="only supported in eager mode") as error:
        poptorch.inferenceModel(made(Decides, torch.jit.script), options())(X, X[:, :2])
    line = Model.forward.__code__.co_firstlineno + 1
    assert f"test_torchscript_modules.py:{line}" in str(error.value)


@pytest.mark.parametrize("convert", (TRAINED | FIXED).values(), ids=TRAINED | FIXED)
def test_task_of_torchscript_then_refused(convert) -> None:
    model = made(Parallel, convert, train=False)
    with pytest.raises(poptorch.Error, match="torch.jit.fork|cannot be captured"):
        poptorch.inferenceModel(model, options())(X, torch.zeros(4, 2))


def test_block_that_begins_at_torchscript_then_it_runs_there() -> None:
    part = poptorch.BeginBlock(torch.jit.script(nn.Linear(3, 3)), "second", ipu_id=1)
    model = nn.Sequential(nn.Linear(3, 3), part)
    inference = poptorch.inferenceModel(model, options().deviceIterations(2))
    torch.testing.assert_close(inference(X), model(X))
    assert poptorch.emulator.schedule(inference).blocks == (("",), ("second",))


def test_torchscript_on_the_host_then_runs_there() -> None:
    class OnHost(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.op = poptorch.CPU(torch.jit.script(Flow()), "part")

        def forward(self, x):
            return self.op(x) + 1

    model = OnHost()
    torch.testing.assert_close(poptorch.inferenceModel(model, options())(X), model(X))
