"""Executors that share parameters behave like one model on one host (api.md 16.2, 16.5).

Each tensor has one newest value. Training changes it, and the next read or training step sees it.
`copyWeightsToDevice` drops the updates of its own executor since the host read the weights last.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch_emu as poptorch

X = torch.ones(1)
SHARED = "shared"


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))


class Step(nn.Module):
    """Adds -1 to its own weight and to a shared one in each call; returns their values before."""

    def __init__(self, shared: Weight) -> None:
        super().__init__()
        self.shared, self.own = shared, Weight()

    def forward(self, x: torch.Tensor):
        shared, own = self.shared.value * x, self.own.value * x
        return shared, own, poptorch.identity_loss(shared + own, "sum")


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


class Rules:
    """Expected state: each tensor's newest value, the host's value, and the executor ahead of
    it."""

    def __init__(self, count: int) -> None:
        self.newest = {SHARED: 0, **dict.fromkeys(range(count), 0)}
        self.host = dict(self.newest)
        self.ahead: int | None = None

    def seen(self, which: int) -> tuple[int, int]:
        return self.newest[SHARED], self.newest[which]

    def bring(self) -> None:
        self.host, self.ahead = dict(self.newest), None

    def bring_of(self, which: int) -> None:
        if self.ahead == which:
            self.bring()

    def train(self, which: int) -> None:
        if self.ahead != which:
            self.bring()
        self.newest[SHARED] -= 1
        self.newest[which] -= 1
        self.ahead = which

    def upload(self, which: int) -> None:
        if self.ahead == which:
            self.newest = dict(self.host)
        self.bring()

    def load(self, which: int, value: int) -> None:
        self.newest[SHARED] = self.newest[which] = value
        self.bring()


class Emulated:
    """Trainers of models with a shared part, each with an inference wrapper, and the rules."""

    def __init__(self, count: int) -> None:
        shared = Weight()
        self.rules = Rules(count)
        self.models = [Step(shared) for _ in range(count)]
        self.trainers = [_trainer(model) for model in self.models]
        self.observers = [poptorch.inferenceModel(model, options()) for model in self.models]
        self.num_loads = 0

    def train(self, which: int) -> None:
        assert _values(self.trainers[which](X)) == self.rules.seen(which)
        self.rules.train(which)

    def read(self, which: int) -> None:
        model = self.models[which]
        assert _values((model.shared.value, model.own.value)) == self.rules.seen(which)
        self.rules.bring()

    def duplicate(self, which: int) -> None:
        for model in (
            copy.deepcopy(self.models[which]),
            pickle.loads(pickle.dumps(self.models[which])),
            copy.copy(self.models[which]),
        ):
            assert _values((model.shared.value, model.own.value)) == self.rules.seen(which)
        self.rules.bring()

    def observe(self, which: int) -> None:
        # After `destroy()` of a trainer, inference no longer follows its model.
        if all(type(model) is not Step for model in self.models):
            assert _values(self.observers[which](X)) == self.rules.seen(which)
            self.rules.bring()

    def upload(self, which: int) -> None:
        if self.trainers[which].isAttachedToDevice():
            self.trainers[which].copyWeightsToDevice()
            self.rules.upload(which)

    def load(self, which: int) -> None:
        if self.trainers[which].isAttachedToDevice():
            self.num_loads += 1
            value = 100 * self.num_loads
            names = self.models[which].state_dict()
            self.trainers[which].load_state_dict({name: value * X for name in names})
            self.rules.load(which, value)

    def download(self, which: int) -> None:
        if self.trainers[which].isAttachedToDevice():
            self.trainers[which].copyWeightsToHost()
            self.rules.bring()

    def detach(self, which: int) -> None:
        if self.trainers[which].isAttachedToDevice():
            self.trainers[which].detachFromDevice()
            self.rules.bring_of(which)

    def attach(self, which: int) -> None:
        trainer = self.trainers[which]
        if trainer.isCompiled() and not trainer.isAttachedToDevice():
            trainer.attachToDevice()
            self.rules.bring()

    def destroy(self, which: int) -> None:
        self.trainers[which].destroy()
        self.rules.bring_of(which)

    def replace(self, which: int) -> None:
        if self.trainers[which].isCompiled():
            self.destroy(which)
            self.wrap(which)

    def drop(self, which: int) -> None:
        self.trainers[which] = None
        self.rules.bring_of(which)
        if type(self.models[which]) is not Step:
            self.models[which].destroy()
        self.wrap(which)

    def wrap(self, which: int) -> None:
        self.trainers[which] = _trainer(self.models[which])
        self.rules.bring()  # The optimiser reads the parameters, so they are fetched.


def _trainer(model: nn.Module) -> poptorch.PoplarExecutor:
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    return poptorch.trainingModel(model, options(), optimizer)


def _values(tensors) -> tuple[float, float]:
    return tensors[0].item(), tensors[1].item()


KINDS = [
    *("train", "train", "train", "read", "duplicate", "observe", "upload", "load", "download"),
    *("detach", "attach", "destroy", "replace", "drop"),
]


@pytest.mark.feature("Several trainers of one parameter", fidelity="exact")
@settings(max_examples=60)
@given(
    st.integers(1, 3).flatmap(
        lambda count: st.lists(
            st.tuples(st.sampled_from(KINDS), st.integers(0, count - 1)), min_size=2, max_size=16
        )
    )
)
def test_executors_that_share_weights_then_act_like_one_model(steps) -> None:
    emulated = Emulated(1 + max(which for _, which in steps))
    for kind, which in steps:
        getattr(emulated, kind)(which)
    for which in range(len(emulated.models)):
        emulated.read(which)
