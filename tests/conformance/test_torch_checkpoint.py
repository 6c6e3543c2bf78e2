"""`torch.utils.checkpoint` in forward: beyond ops-coverage section 4; semantics 10 and 19."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint as torch_checkpoint
from support.helpers import Setting, assert_same_training
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.plan.memory.memory_plan import Content

pytestmark = pytest.mark.feature("torch.utils.checkpoint", fidelity="exact")

ROWS, WIDTH = 4, 8


def part() -> torch.nn.Module:
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Dropout(0.0)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH), torch.nn.Sigmoid())


class TwoStages(torch.nn.Module):
    def __init__(self, call) -> None:
        super().__init__()
        self.first, self.second, self.call = part(), part(), call

    def forward(self, x: torch.Tensor):
        with poptorch.Block("first", ipu_id=0):
            x = self.call(self.first, x)
        with poptorch.Block("second", ipu_id=1):
            x = self.call(self.second, x)
            return x, poptorch.identity_loss(x, "mean")


def plain(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x)


def reentrant(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    # PyTorch, unlike the device, drops all gradients here unless an argument requires one.
    return checkpoint(module, x + module[0].bias, use_reentrant=True)


def not_reentrant(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda t: checkpoint(module, t, use_reentrant=False), x, use_reentrant=False)


def in_segments(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint_sequential(module, 2, x, use_reentrant=False)


@pytest.mark.parametrize("call", [reentrant, not_reentrant, in_segments])
def test_checkpoint_when_trained_then_equals_plain_pytorch(call) -> None:
    torch.manual_seed(0)
    setting = Setting("pipelined", accumulation=3)
    assert_same_training(
        TwoStages(call), lambda rows: (torch.randn(rows, WIDTH),), setting, num_updates=4
    )


def stash_of(call) -> int:
    """Returns the bytes that one micro-batch keeps on the first IPU."""
    options = Setting("pipelined", accumulation=5).options()
    options._Popart.set("autoRecomputation", 0)
    model = TwoStages(call)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1))
    training.compile(torch.randn(ROWS * 5, WIDTH))
    plan = emulator.memory(training)
    return sum(held.item_bytes for held in plan.select(0, Content.STASH))


def test_checkpoint_when_in_a_pipeline_then_only_arguments_and_results_are_kept() -> None:
    activation = ROWS * WIDTH * 4
    assert stash_of(plain) == 3 * activation  # The input and both activations.
    assert stash_of(not_reentrant) == 2 * activation
    assert stash_of(reentrant) == 2 * activation


def test_checkpoint_when_the_function_raises_then_the_next_model_is_not_affected() -> None:
    def fails(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda t: t.no_such_method(), x, use_reentrant=False)

    original = torch_checkpoint.CheckpointFunction
    with pytest.raises(AttributeError, match="no_such_method"):
        stash_of(fails)
    assert torch_checkpoint.CheckpointFunction is original
    assert stash_of(plain) == 3 * ROWS * WIDTH * 4
