"""Compares the planned workspace of an update with the counters of PyTorch's allocator."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from support.rewrites import leave_out
from torch.profiler import ProfilerActivity, profile

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.engine.layout import fused_update
from poptorch_emu.engine.rewrites.gradient_sums import add_products_to_sums
from poptorch_emu.plan.memory.memory_plan import Content

WIDTH = 96
LAYERS = 3
KINDS = ("Weight", "Optimizer", "Accumulator")


@pytest.fixture(autouse=True)
def operation_by_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the engine run an update operation by operation, as the machine does.

    A fused update needs almost no memory, and sums of products keep their memory.
    """
    monkeypatch.setattr(fused_update, "fuse", lambda code, places=None: code)
    leave_out(monkeypatch, add_products_to_sums)


class Chain(torch.nn.Module):
    """Large square weights and tiny batches, so that the update needs the most memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        )

    def forward(self, x: torch.Tensor):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x, poptorch.identity_loss(x, "sum")


def trained(rule: str, replicas: int = 1, is_half: bool = False, change=None, **settings):
    model = Chain().half() if is_half else Chain()
    options = poptorch.Options().showCompilationProgressBar(False)
    options.replicationFactor(replicas)
    if change is not None:
        change(options)
    optimizer = getattr(poptorch.optim, rule)(model.parameters(), lr=0.01, **settings)
    training = poptorch.trainingModel(model, options, optimizer)
    batch = torch.randn(2 * replicas, WIDTH, dtype=torch.half if is_half else torch.float32)
    training(batch)
    return training, batch


def measured(training, batch: torch.Tensor) -> int:
    """Returns the growth of the tensors' bytes in one call, without the accumulators.

    The update needs the most memory. With one worker, everything runs in the profiled thread. Sums
    of float16 gradients reuse their memory of the previous call.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        training(batch)
    changes = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes.sort(key=lambda change: change.start_ns())
    config = training._session.executable.config
    plan = emulator.memory(training)
    accumulated = config.replication_factor * plan.num_bytes(content=Content.ACCUMULATOR)
    grown = max(accumulate(change.nbytes() for change in changes))
    return grown if batch.dtype is torch.half else grown - accumulated


def planned(training) -> int:
    return emulator.memory(training).num_bytes(content=Content.WORKSPACE)


def off_chip(*kinds: str):
    def change(options: poptorch.Options) -> None:
        for kind in kinds:
            away = poptorch.TensorLocationSettings().useOnChipStorage(False)
            getattr(options.TensorLocations, f"set{kind}Location")(away)

    return change


def sharded(*kinds: str):
    def change(options: poptorch.Options) -> None:
        for kind in kinds:
            cut = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
            cut.minElementsForReplicatedTensorSharding(0)
            getattr(options.TensorLocations, f"set{kind}Location")(cut)

    return change


def automatic_loss_scaling(options: poptorch.Options) -> None:
    options.Training.setAutomaticLossScaling(True)


CASES = {
    "momentum": ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    "adamw": ("AdamW", {"weight_decay": 0.1}),
    "adam, clipped": ("Adam", {"max_grad_norm": 0.1}),
    "rmsprop": ("RMSprop", {"momentum": 0.9, "centered": True}),
    "lamb": ("LAMB", {}),
    "half": ("AdamW", {"is_half": True}),
    "half states": ("AdamW", {"is_half": True, "first_order_momentum_accum_type": torch.half}),
    "loss scale": ("Adam", {"is_half": True, "change": automatic_loss_scaling}),
}


@pytest.mark.parametrize("case", CASES)
def test_workspace_when_an_update_runs_then_the_allocator_counts_the_same(case: str) -> None:
    rule, settings = CASES[case]
    training, batch = trained(rule, **settings)
    assert measured(training, batch) == pytest.approx(planned(training), rel=0.02)


@pytest.mark.parametrize(
    ("rule", "kind"), [("SGD", "Accumulator"), ("AdamW", "Accumulator"), ("AdamW", "Weight")]
)
def test_workspace_when_tensors_are_fetched_then_their_copies_count(rule: str, kind: str) -> None:
    """Tensors that return to streaming memory need no more than the earlier temporaries."""
    training, batch = trained(rule, change=off_chip(kind))
    assert measured(training, batch) == pytest.approx(planned(training), rel=0.02)


@pytest.mark.parametrize("rule", ["AdamW", "LAMB"])
def test_workspace_when_replicas_share_an_update_then_one_of_them_runs_it(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", "1")
    training, batch = trained(rule, replicas=2)
    assert measured(training, batch) == pytest.approx(planned(training), rel=0.02)


@pytest.mark.parametrize("rule", ["AdamW", "LAMB"])
@pytest.mark.parametrize("kinds", [KINDS[:1], KINDS[1:2], KINDS[:2], KINDS], ids="+".join)
def test_workspace_when_sharded_then_lies_between_one_replica_and_all_at_once(
    rule: str, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one worker the replicas run in turn, each beside the new values of earlier ones."""
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", "1")
    training, batch = trained(rule, replicas=2, change=sharded(*kinds))
    plan = planned(training)
    assert plan <= measured(training, batch) <= 2 * plan
    whole, _ = trained(rule, replicas=2)
    assert plan < planned(whole)
