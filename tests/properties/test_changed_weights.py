"""Inference with prepared weights sees every change of the weights immediately."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processors import choosing, needs_onednn, needs_vectors
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.engine.product_kernels import Kernel, Role


class Model(nn.Module):
    """Layers with packed weights on two IPUs, and a prepared value that is not a layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None):
        with poptorch.Block("first", ipu_id=0):
            x = torch.relu(self.first(x))
        with poptorch.Block("last", ipu_id=1):
            y = self.last(x) * (self.scale.exp() + 1)
            if target is None:
                return y
            return y, nn.functional.mse_loss(y, target)


def options(iterations: int) -> poptorch.Options:
    made = poptorch.Options()
    made.deviceIterations(iterations)
    made.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu))
    return made.showCompilationProgressBar(False)


class Pair:
    """A model and its plain copy, with two inference wrappers and a trainer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.plain = copy.deepcopy(self.model)
        self.optimizer = torch.optim.SGD(self.plain.parameters(), lr=0.1)
        self.trainer = poptorch.trainingModel(
            self.model, options(1), torch.optim.SGD(self.model.parameters(), lr=0.1)
        )
        self.observers = [poptorch.inferenceModel(self.model, options(n)) for n in (1, 2)]
        self.num_changes = 0

    def infer(self, which: int) -> None:
        x = torch.randn(4, 4)
        torch.testing.assert_close(self.observers[which](x), self.plain(x).detach())

    def train(self) -> None:
        x, target = torch.randn(4, 4), torch.randn(4, 4)
        self.optimizer.zero_grad()
        self.plain(x, target)[1].backward()
        self.optimizer.step()
        self.trainer(x, target)

    def change(self, model: nn.Module, number: int) -> None:
        """Sets other weights, small enough that updates do not amplify rounding."""
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))

    def load(self, which: int) -> None:
        """Sets new weights by `load_state_dict`."""
        self.num_changes += 1
        self.change(self.plain, self.num_changes)
        self.model.load_state_dict(self.plain.state_dict())
        if self.trainer.isAttachedToDevice():
            self.trainer.copyWeightsToDevice()
        self._upload(which)

    def write(self, which: int) -> None:
        """Changes the weights in place."""
        self.num_changes += 1
        for model in (self.plain, self.model):
            self.change(model, self.num_changes)
        if self.trainer.isAttachedToDevice():
            self.trainer.copyWeightsToDevice()
        self._upload(which)

    def detach(self, which: int) -> None:
        if self.observers[which].isAttachedToDevice():
            self.observers[which].detachFromDevice()

    def _upload(self, which: int) -> None:
        for observer in (self.observers[which], self.observers[1 - which]):
            if observer.isAttachedToDevice():
                observer.copyWeightsToDevice()


ACTIONS = st.one_of(
    st.tuples(st.just("infer"), st.integers(0, 1)),
    st.tuples(st.just("infer"), st.integers(0, 1)),
    st.just(("train",)),
    st.tuples(st.sampled_from(["load", "write", "detach"]), st.integers(0, 1)),
)


@pytest.mark.parametrize(
    ("kernel", "layer"),
    [
        pytest.param(Kernel.ONEDNN, "mkldnn::_linear_pointwise(", marks=needs_onednn),
        pytest.param(Kernel.SMALL, "poptorch_emu::packed_linear(", marks=needs_vectors),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_inference_then_follows_its_weights(workers, kernel, layer, monkeypatch):
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", str(workers))

    @settings(max_examples=25)
    @given(st.lists(ACTIONS, min_size=2, max_size=10))
    def follow(actions) -> None:
        pair = Pair()
        try:
            for name, *arguments in [("infer", 0), *actions, ("infer", 0), ("infer", 1)]:
                getattr(pair, name)(*arguments)
            program = pair.observers[0]._executable.program.text()
            assert program.count(layer) == 2
        finally:
            # Frees the IPUs, because pytest keeps a failure together with its models.
            for executor in (pair.trainer, *pair.observers):
                executor.destroy()

    with choosing(Role.FIXED_LAYER, kernel, is_packed=True):
        follow()
