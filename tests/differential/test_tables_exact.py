"""Models that run by a table of schedules train to the bits of PopTorch's own pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection

import pytest
import torch
from hypothesis import given, settings
from support.helpers import Setting
from support.models import FAMILIES
from support.random_tables import Rows, legal_tables

import poptorch_emu as poptorch
from poptorch_emu import emulator

schedules = emulator.schedules
STAGES = 4
SETTING = Setting(accumulation=8, iterations=2)
Change = Callable[[poptorch.Options], object]


def train(
    model: torch.nn.Module,
    batch: Callable[[int], tuple[torch.Tensor, ...]],
    schedule: object,
    *changes: Change,
    setting: Setting = SETTING,
) -> list[torch.Tensor]:
    """Returns the results of two calls, and the weights after them."""
    options = setting.options().autoRoundNumIPUs(True)
    emulator.set_schedule(options, schedule)
    for change in changes:
        change(options)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, options, optimizer)
    torch.manual_seed(5)
    results = [value for _ in range(2) for value in training(*batch(2 * setting.num_micro_batches))]
    training.destroy()
    return [*results, *(value.clone() for value in model.state_dict().values())]


def of_family(name: str, schedule: object, *changes: Change) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return train(FAMILIES[name].make(STAGES), FAMILIES[name].batch, schedule, *changes)


@functools.cache
def grouped(name: str) -> list[torch.Tensor]:
    """Returns the results with PopTorch's own pipeline. Tests must not change them."""
    return of_family(name, "grouped")


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for value, reference in zip(found, expected, strict=True):
        assert torch.equal(value, reference)


@pytest.mark.feature("emulator.set_schedule", fidelity="exact")
@pytest.mark.parametrize(
    ("family", "order"),
    [
        *((family, "schedule") for family in FAMILIES),
        # Tables change little in this order, in which a micro-batch runs through all stages by
        # itself.
        *((family, "micro-batches") for family in ("resnet", "transformer")),
    ],
)
def test_bits_by_any_table_then_are_those_of_the_grouped_pipeline(
    family: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if order == "schedule":
        monkeypatch.setenv("POPTORCH_EMU_ORDER", order)
    expected = of_family(family, "grouped")
    for name in schedules.NAMED:
        assert_equal(of_family(family, name), expected)


def recompute(mode: int) -> Change:
    def change(options: poptorch.Options) -> None:
        options._Popart.set("autoRecomputation", mode)
        emulator.set_recomputation(options, "executed")

    return change


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("family", ["resnet", "transformer", "lstm"])
def test_bits_when_recomputed_then_are_the_same_in_both_halves_of_backward(
    family: str, mode: int
) -> None:
    for name in ("zero_bubble_h1", "zero_bubble_v", "dualpipe_v"):
        assert_equal(of_family(family, name, recompute(mode)), grouped(family))


def test_bits_when_a_table_says_when_to_recompute_then_are_the_same() -> None:
    rows = [
        [f"{stage}F{m}" for m in range(8)]
        + [f"{stage}{letter}{m}" for m in range(8) for letter in "RIW"]
        for stage in range(STAGES)
    ]
    own = schedules.from_table(rows)
    for mode in (0, 3, 4):
        assert_equal(of_family("transformer", own, recompute(mode)), grouped("transformer"))


def off_chip(options: poptorch.Options) -> None:
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    for name in ("Weight", "Optimizer", "Accumulator", "Activation"):
        getattr(options.TensorLocations, f"set{name}Location")(location)


def two_replicas(options: poptorch.Options) -> None:
    options.replicationFactor(2)
    sharded = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    options.TensorLocations.setOptimizerLocation(sharded.minElementsForReplicatedTensorSharding(2))


@pytest.mark.parametrize("change", [off_chip, two_replicas])
def test_bits_when_tensors_live_elsewhere_then_are_the_same(change: Change) -> None:
    setting = Setting(accumulation=8, replicas=2 if change is two_replicas else 1)

    def trained(schedule: object) -> list[torch.Tensor]:
        torch.manual_seed(3)
        family = FAMILIES["mlp"]
        return train(family.make(STAGES), family.batch, schedule, change, setting=setting)

    expected = trained("grouped")
    for name in ("looped_bfs", "zero_bubble_h2", "dualpipe_v"):
        assert_equal(trained(name), expected)


@pytest.mark.parametrize(
    ("rule", "names"),
    [("SGD", ["zero_bubble_v"]), ("AdamW", schedules.NAMED)],
    ids=["SGD", "AdamW"],
)
def test_bits_when_gradients_are_clipped_then_are_the_same_wherever_stages_are(
    rule: str, names: Collection[str]
) -> None:
    def trained(schedule: object) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = FAMILIES["transformer"].make(STAGES)
        options = Setting(accumulation=8).options().autoRoundNumIPUs(True)
        emulator.set_schedule(options, schedule)
        kind = getattr(poptorch.optim, rule)
        training = poptorch.trainingModel(
            model, options, kind(model.parameters(), lr=0.1, max_grad_norm=0.05)
        )
        results = [*training(*FAMILIES["transformer"].batch(16))]
        training.destroy()
        return [*results, *(value.clone() for value in model.state_dict().values())]

    expected = trained("grouped")
    for name in names:
        assert_equal(trained(name), expected)


class Hard(torch.nn.Module):
    """A weight that the first and the last stage share, a skip over stages, noise, a printed value.

    And a buffer that counts, a frozen layer, and a stage without weights.
    """

    def __init__(self, *, is_seen: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 6)
        self.frozen = torch.nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.layer = torch.nn.Linear(6, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.is_seen = is_seen

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("first", ipu_id=0):
            x = skip = self.frozen(self.embedding(tokens))
        with poptorch.Block("second", ipu_id=1):
            x = torch.nn.functional.dropout(torch.relu(self.layer(x)), 0.3)
            if self.is_seen:
                x = poptorch.ipu_print_tensor(x, "x")
        with poptorch.Block("third", ipu_id=2):
            x = torch.tanh(x) * (1 + 0.1 * torch.rand_like(x))
        with poptorch.Block("fourth", ipu_id=3):
            logits = self.norm(x + skip) @ self.embedding.weight.T
            return logits, torch.nn.functional.cross_entropy(logits, tokens)


def tokens(rows: int) -> tuple[torch.Tensor]:
    return (torch.randint(11, (rows,)),)


@pytest.mark.parametrize("is_seen", [False, True])
def test_bits_of_a_hard_model_then_are_the_same(
    is_seen: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    def trained(schedule: object, *changes: Change) -> list[torch.Tensor]:
        torch.manual_seed(4)
        return train(Hard(is_seen=is_seen), tokens, schedule, *changes)

    expected = trained("grouped")
    for name in schedules.NAMED:
        assert_equal(trained(name), expected)
    assert_equal(trained("zero_bubble_v", recompute(4)), expected)


@settings(max_examples=25, deadline=None)
@given(legal_tables(num_stages=STAGES, num_micro_batches=4))
def test_bits_by_a_random_table_then_are_the_same(rows: Rows) -> None:
    setting = Setting(accumulation=4)

    def trained(schedule: object) -> list[torch.Tensor]:
        torch.manual_seed(4)
        return train(Hard(is_seen=True), tokens, schedule, setting=setting)

    assert_equal(trained(schedules.from_table(rows)), trained("one_f_one_b"))


@pytest.mark.parametrize("name", schedules.NAMED)
def test_outputs_of_inference_by_any_table_then_are_the_same(name: str) -> None:
    torch.manual_seed(3)
    model = FAMILIES["transformer"].make(STAGES).eval()
    batch = FAMILIES["transformer"].batch(16)
    found = []
    for schedule in ("grouped", name):
        options = Setting(iterations=8).options().autoRoundNumIPUs(True)
        emulator.set_schedule(options, schedule)
        inference = poptorch.inferenceModel(model, options)
        found.append(inference(*batch))
        inference.destroy()
    assert_equal(list(found[1]), list(found[0]))
