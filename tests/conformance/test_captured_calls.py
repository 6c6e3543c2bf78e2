"""Wrapped models in programs that PyTorch compiles or captures: they run, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.forked_programs import PYTORCH, run_forked
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import poptorch_emu as poptorch

X = torch.linspace(-1, 1, 8).reshape(4, 2)
Y = torch.linspace(0, 1, 4).reshape(4, 1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.linear(x), y)


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def trained() -> poptorch.PoplarExecutor:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return poptorch.trainingModel(model, options(), optimizer)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles with PyTorch, but without generating code, which takes long."""
    torch._dynamo.reset()
    return torch.compile(function, backend="eager")


@pytest.mark.feature("Wrapped models under torch.compile", fidelity="exact")
def test_step_of_training_when_compiled_then_as_without() -> None:
    plain, training = trained(), trained()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return training(x * 1, y) * 2

    step = compiled(step)
    losses = [step(X, Y) for _ in range(4)]
    assert losses == [plain(X, Y) * 2 for _ in range(4)]
    assert torch.equal(training.model.linear.weight, plain.model.linear.weight)


def test_loop_over_batches_when_compiled_then_trains_at_each() -> None:
    plain, training = trained(), trained()

    def epoch(batches: list[Any]) -> torch.Tensor:
        total = torch.zeros(())
        for x, y in batches:
            total = total + training(x, y)
        return total

    expected = sum(plain(X, Y) for _ in range(3))
    torch.testing.assert_close(compiled(epoch)([(X, Y)] * 3), expected)


def test_wrapper_itself_when_compiled_then_as_without() -> None:
    plain, training = trained(), trained()
    assert compiled(training)(X, Y) == plain(X, Y)


def test_model_made_in_a_compiled_function_then_runs() -> None:
    def first_loss() -> torch.Tensor:
        return trained()(X, Y)

    assert compiled(first_loss)() == trained()(X, Y)


def test_learning_rate_changed_in_a_compiled_step_then_taken() -> None:
    def losses(wrap: Callable[..., Any]) -> list[torch.Tensor]:
        model = Model()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        training = poptorch.trainingModel(model, options(), optimizer)

        def step(rate: float) -> torch.Tensor:
            optimizer.param_groups[0]["lr"] = rate
            training.setOptimizer(optimizer)
            return training(X, Y)

        step = wrap(step)
        return [step(rate) for rate in (0.1, 0.5, 0.01)]

    assert losses(compiled) == losses(lambda function: function)


def test_trained_module_when_compiled_for_the_host_then_has_the_new_weights() -> None:
    training = trained()
    for _ in range(3):
        training(X, Y)
    on_host = compiled(training.model)
    assert torch.equal(on_host(X, Y), Model.forward(training.model, X, Y))


def test_batches_of_a_loader_in_a_compiled_function_then_all_arrive() -> None:
    data = torch.utils.data.TensorDataset(X)
    loader = poptorch.DataLoader(options(), data, batch_size=2)
    model = poptorch.inferenceModel(nn.Linear(2, 1), options())

    def run_all() -> list[torch.Tensor]:
        return [model(x) for (x,) in loader]

    torch.testing.assert_close(torch.cat(compiled(run_all)()), model.model(X))


CAPTURES = {
    "grad": lambda call: torch.func.grad(lambda x: call(x).sum())(X),
    "jvp": lambda call: torch.func.jvp(call, (X,), (X,)),
    "vmap": lambda call: torch.vmap(call)(X.expand(3, 4, 2)),
    "make_fx": lambda call: make_fx(call)(X),
    "jit": lambda call: torch.jit.trace(call, (X,)),
    "forward": lambda call: poptorch.inferenceModel(Calls(call), options())(X),
}


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.feature("Wrapped models in captured programs", fidelity="refused")
@pytest.mark.filterwarnings("ignore:.torch.jit.* is deprecated")
@pytest.mark.parametrize("has_run", [False, True], ids=["first call", "later call"])
@pytest.mark.parametrize("capture", CAPTURES.values(), ids=CAPTURES)
def test_wrapped_model_in_a_capture_then_refused_with_the_line(capture, has_run) -> None:
    model = poptorch.inferenceModel(nn.Linear(2, 1), options())
    if has_run:
        model(X)

    def call(x: torch.Tensor) -> torch.Tensor:
        return model(x) + 1

    with pytest.raises(
        poptorch.Error, match="A wrapped model was called at .*outside|calls a wrapped model at"
    ) as caught:
        capture(call)
    line = f"{__file__}:{call.__code__.co_firstlineno + 1}"
    assert line in caught.value.message
    torch.testing.assert_close(model(X), model.model(X))


def test_import_and_calls_then_do_not_load_pytorchs_compiler() -> None:
    program = (
        "import sys, torch, poptorch_emu as poptorch\n"
        "model = poptorch.inferenceModel(torch.nn.ReLU())\n"
        "model(torch.ones(2))\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = run_forked(["-c", program], loaded=PYTORCH)
    assert done.stdout == "False\n", done.stderr
