"""`emulator.compare` of runs without random numbers, with other updates, or with integers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

pytestmark = pytest.mark.feature("emulator.compare", fidelity="exact")

F = nn.functional


class Attentions(nn.Module):
    """Two attentions, which PyTorch marks as random although they drop nothing, then dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.drop = nn.Dropout(0.2)

    def forward(self, x, y):
        for layer in self.layers:
            x = self.drop(F.scaled_dot_product_attention(layer(x), x, x))
        return x, F.mse_loss(x, y)


class Leaky(nn.Module):
    """Two activations with random slopes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.RReLU(), nn.Linear(16, 16), nn.RReLU())

    def forward(self, x, y):
        x = self.layers(x)
        return x, F.mse_loss(x, y)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x, y):
        x = self.layer(x)[0]
        return x, F.mse_loss(x, y)


def trainer(model: nn.Module, beta: float = 0.9) -> poptorch.PoplarExecutor:
    trained = [each for each in model.parameters() if each.requires_grad]
    options = poptorch.Options().showCompilationProgressBar(False)
    return poptorch.trainingModel(
        model, options, poptorch.optim.AdamW(trained, lr=0.1, betas=(beta, 0.99))
    )


BATCH = torch.randn(2, 4, 6, 16, generator=torch.Generator().manual_seed(0)).unbind()


@pytest.mark.parametrize("model", [Attentions, Leaky, Recurrent])
def test_model_against_plain_pytorch_then_rounding_explains_all(model) -> None:
    training = trainer(model())
    assert emulator.compare(training, *BATCH).verdict <= emulator.Verdict.REORDERED
    wide = emulator.compare(training, *BATCH, against=torch.float64)
    assert wide.verdict <= emulator.Verdict.LESS_PRECISION


def test_weight_that_the_other_run_freezes_then_is_named() -> None:
    model = Recurrent()
    other = copy.deepcopy(model)
    other.layer.bias_hh_l0.requires_grad_(False)
    report = emulator.compare(trainer(model), *BATCH, against=trainer(other))
    assert report.verdict is emulator.Verdict.DIFFERENT
    assert "update of layer.bias_hh_l0" in str(report) and "Only this run updates" in str(report)


def test_states_that_only_a_later_step_reads_then_are_compared() -> None:
    """The first step of Adam has the same weights for all of its betas."""
    model = Recurrent()
    report = emulator.compare(trainer(model), *BATCH, against=trainer(copy.deepcopy(model), 0.5))
    assert report.verdict is emulator.Verdict.DIFFERENT


class Small(nn.Module):
    """Two layers with a norm whose averages are buffers.

    Without the tanh, the norm would cancel the bias of the first layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 4)

    def forward(self, x, y):
        x = self.last(torch.relu(self.norm(torch.tanh(self.first(x)))))
        return x, F.mse_loss(x, y)


def small(
    kind: Any = poptorch.optim.SGD,
    change: Callable[[Small], Any] = lambda model: None,
    groups: Callable[[Small], Any] = lambda model: model.parameters(),
    options: Callable[[poptorch.Options], Any] = lambda options: None,
    **settings: Any,
) -> poptorch.PoplarExecutor:
    torch.manual_seed(1)
    model, chosen = Small(), poptorch.Options().showCompilationProgressBar(False)
    chosen.Training.gradientAccumulation(2)
    change(model)
    options(chosen)
    return poptorch.trainingModel(model, chosen, kind(groups(model), **{"lr": 0.1, **settings}))


def without_last_bias(model: Small) -> list[nn.Parameter]:
    return [each for name, each in model.named_parameters() if name != "last.bias"]


def frozen(name: str) -> Callable[[Small], Any]:
    return lambda model: model.get_parameter(name).requires_grad_(False)


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Small], Any]:
    def apply(model: Small) -> None:
        with torch.no_grad():
            tensor = model.state_dict()[name]
            tensor.copy_(change(tensor.clone()))

    return apply


def adam(**settings: Any) -> dict[str, Any]:
    return {"kind": poptorch.optim.AdamW, **settings}


def summed(options: poptorch.Options) -> None:
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)


RMS, LAMB = {"kind": poptorch.optim.RMSprop}, {"kind": poptorch.optim.LAMB}
MOMENTUM = {"momentum": 0.9}
# The settings of one run, and those of the other, which differ by a fault.
FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "learning rate": ({}, {"lr": 0.101}),
    "sign of the learning rate's change": ({"lr": 0.1}, {"lr": 0.099}),
    "momentum left out": (MOMENTUM, {}),
    "dampening": (MOMENTUM, {**MOMENTUM, "dampening": 0.5}),
    "nesterov": (MOMENTUM, {**MOMENTUM, "nesterov": True}),
    "weight decay": ({}, {"weight_decay": 0.01}),
    "decay of Adam": (adam(), adam(weight_decay=0.0)),
    "first beta": (adam(), adam(betas=(0.8, 0.999))),
    "second beta": (adam(), adam(betas=(0.9, 0.99))),
    "epsilon": (adam(), adam(eps=1e-2)),
    "coupled decay": (
        adam(weight_decay=0.1), {"kind": poptorch.optim.Adam, "weight_decay": 0.1},
    ),
    "another optimizer": (adam(), {}),
    "LAMB instead of Adam": (adam(), LAMB),
    "decay of squares": (RMS, {**RMS, "alpha": 0.9}),
    "centred": (RMS, {**RMS, "centered": True}),
    "epsilon of RMSprop": (RMS, {**RMS, "eps": 1e-2}),
    "no clipping": ({"max_grad_norm": 1e-3}, {}),
    "another clipping": ({"max_grad_norm": 1e-3}, {"max_grad_norm": 2e-3}),
    "frozen weight": ({}, {"change": frozen("first.weight")}),
    "frozen bias": ({}, {"change": frozen("last.bias")}),
    "weight that is frozen here alone": ({"change": frozen("norm.weight")}, {}),
    "rate of one group": (
        {},
        {"groups": lambda m: [
            {"params": without_last_bias(m)}, {"params": [m.last.bias], "lr": 0.2},
        ]},
    ),
    "decay of one group": (
        {},
        {"groups": lambda m: [
            {"params": without_last_bias(m)}, {"params": [m.last.bias], "weight_decay": 0.5},
        ]},
    ),
    "sum of micro-batches": ({}, {"options": summed}),
    "start of a weight": ({}, {"change": changed("first.weight", lambda w: w + 1e-3)}),
    "start of a bias": ({}, {"change": changed("last.bias", torch.zeros_like)}),
    "rows of a weight": ({}, {"change": changed("last.weight", lambda w: w.flip(0))}),
    "momentum of averages": ({}, {"change": lambda m: setattr(m.norm, "momentum", 0.2)}),
    "start of an average": ({}, {"change": changed("norm.running_mean", torch.ones_like)}),
    "epsilon of the norm": ({}, {"change": lambda m: setattr(m.norm, "eps", 1e-2)}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_an_update_then_runs_are_different(fault: str) -> None:
    x, y = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0)).unbind()
    one, two = FAULTS[fault]
    report = emulator.compare(small(**one), x, y, against=small(**two))
    assert report.verdict is emulator.Verdict.DIFFERENT
    assert report.first is not None


def test_momentum_that_only_a_later_window_reads_then_that_window_is_different() -> None:
    x, y = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0)).unbind()
    ours, other = small(**MOMENTUM), small(momentum=0.8)
    assert emulator.compare(ours, x, y, against=other).verdict is emulator.Verdict.EQUAL
    for training in (ours, other):
        training(x, y)
    assert emulator.compare(ours, x, y, against=other).verdict is emulator.Verdict.DIFFERENT


@pytest.mark.parametrize("settings", [{}, MOMENTUM, adam(), RMS, LAMB, {"max_grad_norm": 1e-3}])
def test_update_of_the_same_kind_then_runs_have_equal_bits(settings: dict[str, Any]) -> None:
    x, y = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0)).unbind()
    report = emulator.compare(small(**settings), x, y, against=small(**settings))
    assert report.verdict is emulator.Verdict.EQUAL
