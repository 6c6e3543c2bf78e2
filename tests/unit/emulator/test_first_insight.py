"""Models that are each built to be slow for one cause: the first insight names it, and helps.

The promised gain is compared with the estimate of a model that is built with the advised lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.compile.remedies import Remedy
from poptorch_emu.plan.time.causes import Cause, Loss, losses
from poptorch_emu.plan.time.step_parts import Part
from poptorch_emu.report.remedy_text import remedy_text

pytestmark = [
    pytest.mark.feature("emulator.summary", fidelity="modelled"),
    pytest.mark.feature("emulator.what_if", fidelity="modelled"),
]

SYSTEM = "bow-pod16"
OFF_CHIP = poptorch.TensorLocationSettings().useOnChipStorage(False)


class Layers(torch.nn.Module):
    """Linear layers in blocks of their own; inputs and results may cross while it computes."""

    def __init__(self, widths: Sequence[int], ipus: Sequence[int], code: str) -> None:
        super().__init__()
        pairs = zip(widths, widths[1:], strict=False)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*pair) for pair in pairs)
        self.ipus, self.code = ipus, code

    def forward(self, x: torch.Tensor) -> Any:
        mode = poptorch.OverlapMode.OverlapAccumulationLoop
        if "for_input" in self.code:
            x = poptorch.set_overlap_for_input(x, mode)
        for index, layer in enumerate(self.layers):
            poptorch.Block.start(f"layer {index}", ipu_id=self.ipus[index])
            x = torch.relu(layer(x))
        loss = poptorch.identity_loss(x.pow(2).mean(), "none")
        return poptorch.set_overlap_for_output(x, mode) if "for_output" in self.code else x, loss


class Language(torch.nn.Module):
    """A model of words whose head, on the last IPU, is tied to the embedding on the first."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(8192, 512)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(8))
        self.head = torch.nn.Linear(512, 8192, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        poptorch.Block.start("embedding", ipu_id=0)
        x = self.embedding(words)
        for index, layer in enumerate(self.layers):
            poptorch.Block.start(f"layer {index}", ipu_id=index // 2)
            x = torch.relu(layer(x))
        poptorch.Block.start("head", ipu_id=3)
        return torch.nn.functional.cross_entropy(self.head(x), words)


@dataclass(frozen=True)
class Case:
    """A slow model.

    Attributes:
        says: words of the first insight.
        advises: words of its advice.
        widths: widths of the layers; empty for the model of words.
        ipus: IPUs of the layers.
        rows: rows of a micro-batch.
    """

    says: str
    advises: str
    widths: Sequence[int]
    ipus: Sequence[int]
    rows: int
    accumulation: int = 64
    device_iterations: int = 4
    replicas: int = 1
    is_adam: bool = False
    change: Callable[[poptorch.Options], Any] = lambda options: None


def of_locations(kind: str) -> Callable[[poptorch.Options], Any]:
    return lambda options: getattr(options.TensorLocations, f"set{kind}Location")(OFF_CHIP)


FOUR = [0] * 4
CASES = {
    "weight on several IPUs": Case(
        "IPUs 0 and 3 use the weight embedding.weight, which a real system refuses",
        "Put all its uses on one IPU", [], [], 128,
    ),
    "host input": Case(
        "IPU 0 waits for inputs from the host", "while the IPU computes",
        [4096, 64, 64], [0, 0], 256,
    ),
    "host output": Case(
        "IPU 0 waits for results to reach the host", "return results with OutputMode.Final",
        [64, 4096], [0], 256,
        change=lambda options: options.outputMode(poptorch.OutputMode.All),
    ),
    "calls": Case(
        "Starting a call on the host takes", "device iterations", [64, 256, 256], [0, 0], 8,
        accumulation=1, device_iterations=1,
    ),
    "streaming memory, states": Case(
        "IPU 0 waits for streaming memory", "keep all tensors on the chip",
        [64] + [1024] * 4, FOUR, 64, accumulation=2, is_adam=True, change=of_locations("Optimizer"),
    ),
    "streaming memory, activations": Case(
        "waits for streaming memory", "keep all tensors on the chip",
        [64] + [1024] * 8, [i // 2 for i in range(8)], 256, change=of_locations("Activation"),
    ),
    "slow stage": Case(
        "IPU 3 takes 1.", "Split the model differently over 4 IPUs",
        [64] + [1024] * 8, [0, 1, 2, 3, 3, 3, 3, 3], 512,
    ),
    "one IPU at a time": Case(
        "Only one IPU works at a time", "Split the model differently over 4 IPUs",
        [64] + [1024] * 12, [i // 3 for i in range(12)], 128,
        change=lambda options: options.setExecutionStrategy(
            poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu)
        ),
    ),
    "short windows": Case(
        "Filling and emptying the pipeline takes", "Accumulate",
        [64] + [1024] * 12, [i // 3 for i in range(12)], 256, accumulation=8, device_iterations=16,
    ),
    "update": Case(
        "Updating the weights takes", "Accumulate", [64, 4096, 4096], [0, 0], 8,
        accumulation=1, device_iterations=64, is_adam=True,
    ),
    "all-reduce": Case(
        "Adding up the gradients of all replicas takes", "Accumulate", [64] + [1024] * 4, FOUR, 16,
        accumulation=1, device_iterations=64, replicas=16,
    ),
    "recomputation": Case(
        "recomputes activations", "Recompute nothing",
        [64] + [2048] * 4, FOUR, 512,
        change=lambda options: options._Popart.set("autoRecomputation", 4),
    ),
    "memory proportion": Case(
        "Matrix products have little memory", "Set the available memory proportion to 0.6",
        [64] + [1024] * 4, FOUR, 512,
        change=lambda options: options.setAvailableMemoryProportion({"IPU0": 0.02}),
    ),
    "small micro-batches": Case(
        "Micro-batches are small for the machine", "Use micro-batches of", [512] * 9, [0] * 8, 1,
        device_iterations=8,
    ),
}  # fmt: skip


def built(case: Case, code: str = "") -> tuple[poptorch.PoplarExecutor, torch.Tensor]:
    """Returns a model of meta tensors with some lines applied to its options, and its batch."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.deviceIterations(case.device_iterations).replicationFactor(case.replicas)
    options.Training.gradientAccumulation(case.accumulation)
    case.change(options)
    exec(code, {"options": options, "poptorch": poptorch, "emulator": emulator})
    rows = re.search(r"batch_size=(\d+)", code)
    count = options.device_iterations * options.replication_factor
    count *= options.Training.gradient_accumulation * (int(rows[1]) if rows else case.rows)
    with torch.device("meta"):
        if case.widths:
            model = Layers(case.widths, case.ipus, code)
            batch = torch.empty(count, case.widths[0])
        else:
            model, batch = Language(), torch.empty(count, dtype=torch.long)
    kind = poptorch.optim.AdamW if case.is_adam else poptorch.optim.SGD
    return poptorch.trainingModel(model, options, kind(model.parameters(), lr=0.1)), batch


@pytest.mark.parametrize("name", CASES)
def test_first_insight_then_names_the_cause_and_keeps_what_it_promises(name: str) -> None:
    case = CASES[name]
    view = emulator.summary(*built(case), system=SYSTEM).view
    first = view["insights"][0]
    assert case.says in first["text"]
    assert case.advises.lower() in first["text"].lower()
    assert first["kind"] == ("problem" if not case.widths else "warning")
    promised = float(re.search(r"predicts ([\d.]+) ×", first["text"])[1])
    before = view["speed"]["predicted_rows_per_second"]
    mended, batch = built(case, first["code"])
    after = emulator.estimate(mended, batch, system=SYSTEM)
    assert promised > 1.05
    assert after.throughput / before - 1 >= 0.95 * (promised - 1)
    assert emulator.tile_memory(mended, batch, system=SYSTEM).fits
    # The figure "Limited by" equals the bottleneck of the estimate.
    assert view["bottleneck"] == emulator.estimate(*built(case), system=SYSTEM).bottleneck
    # The advice names the factor by which the rows of an update change.
    factor = mended_rows(mended, batch) / mended_rows(*built(case))
    assert ("changes the training" in first["text"]) == (factor != 1)
    assert factor == 1 or f"has {factor:g} times the rows" in first["text"]


def mended_rows(model: poptorch.PoplarExecutor, batch: torch.Tensor) -> float:
    """Returns the rows of an update."""
    return len(batch) / model.options.device_iterations


def test_first_insight_when_the_loader_is_slow_then_names_it_in_all_places() -> None:
    slow = emulator.HostWork(items_per_second=1000)
    case = CASES["short windows"]
    view = emulator.summary(*built(case), system=SYSTEM, io=slow).view
    share = re.search(r"program on the host for ([\d.]+)% of a step", view["insights"][0]["text"])
    assert "num_workers" in view["insights"][0]["text"] and view["insights"][0]["code"] is None
    assert float(share[1]) > 90 and "host's own work" in view["bottleneck"]
    (point,) = emulator.what_if(
        *built(case), system=SYSTEM, io=slow, sweep={"accumulation": [case.accumulation]}
    ).points
    estimate = emulator.estimate(*built(case), system=SYSTEM, io=slow)
    assert point.limit == estimate.bottleneck == view["bottleneck"]
    assert estimate.throughput == pytest.approx(1000)


def test_first_cause_when_no_change_helps_then_is_told_all_the_same() -> None:
    """Links take most of the time, although the present split already keeps them smallest."""
    case = replace(
        CASES["recomputation"], widths=[64] + [2048] * 4, ipus=range(4), rows=1024, accumulation=256
    )
    view = emulator.summary(*built(case), system=SYSTEM).view
    assert view["bottleneck"].startswith("data from other IPUs")
    first, second = (one["text"] for one in view["insights"][:2])
    assert "waits for data from other IPUs" in first
    assert first.endswith("No change that was tried, and that fits, surely saves 5% of a step.")
    assert "Recompute nothing" in second


def test_slow_stage_when_no_split_helps_then_the_reason_is_told() -> None:
    case = Case("", "", [64, 1024, 1024, 1024, 4096], range(4), 512)
    view = emulator.summary(*built(case), system=SYSTEM).view
    assert view["bottleneck"].startswith("one slow stage")
    first = view["insights"][0]["text"]
    assert first.startswith("IPU 3 takes 1.")
    assert first.endswith("keeps each block whole: divide those of IPU 3 into smaller ones.")


def test_first_cause_when_every_change_is_impossible_then_the_reason_is_told() -> None:
    loss = Loss(Cause.LINK, 0.3, 1, 1.0)
    text = remedy_text(Remedy(loss, {}, None, obstacle="No split over 2 IPUs keeps 'w' on one."))
    assert text == (
        "IPU 1 waits for data from other IPUs for 30.0% of a step. No change that was tried is "
        "possible. No split over 2 IPUs keeps 'w' on one."
    )


def test_cause_when_ipus_take_turns_then_its_share_is_not_told_of_one_ipu() -> None:
    case = Case("", "", [512] * 9, [i // 4 for i in range(8)], 1, device_iterations=8,
                change=lambda options: emulator.set_schedule(options, "sequential"))  # fmt: skip
    report = emulator.estimate(*built(case), system=SYSTEM)
    (small,) = (each for each in losses(report) if each.cause is Cause.SMALL_MICRO_BATCH)
    lost = sum(ipu.of(Part.SYNC, Part.EXCHANGE) for ipu in report.ipus)
    assert small.share == pytest.approx(lost / report.step_seconds, rel=0.05)
    assert f"{small.share:.1%} of a step on one IPU after another" in remedy_text(
        Remedy(small, {}, None)
    )


def test_insights_of_a_model_that_mostly_computes_then_say_so() -> None:
    """Exchange between tiles takes a few percent even with the largest micro-batches."""
    view = emulator.summary(*built(Case("", "", [64] + [4096] * 4, FOUR, 4096)), system=SYSTEM).view
    assert view["bottleneck"].startswith("computing (8")
    (text,) = (one["text"] for one in view["insights"] if "IPU 0 computes" in one["text"])
    assert "model.half()" in text
    assert not any("Micro-batches are small" in one["text"] for one in view["insights"])


def test_insights_of_a_balanced_model_then_ask_for_no_move() -> None:
    case = Case("", "", [64] + [1024] * 8, [i // 2 for i in range(8)], 512, accumulation=1024)
    texts = [insight["text"] for insight in emulator.summary(*built(case)).view["insights"]]
    assert not any("times the mean" in text or "Filling" in text for text in texts)


def test_weight_on_several_ipus_then_the_estimate_tells_it_too() -> None:
    case = CASES["weight on several IPUs"]
    report = emulator.estimate(*built(case), system=SYSTEM)
    (weight,) = report.spread_weights
    text = emulator.summary(*built(case), system=SYSTEM).view["insights"][0]["text"]
    told = float(re.search(r"takes ([\d.]+)% of a step", text)[1])
    crossing = next(ipu for ipu in report.ipus if ipu.ipu == 0).of(Part.LINK) / report.step_seconds
    assert told == pytest.approx(100 * crossing, rel=0.05)
    assert weight.name == "embedding.weight" and weight.ipus == (0, 3)
    assert weight.num_bytes == 4 * 8192 * 512
    assert "at no cost" not in str(report)
    sentence = (
        "IPUs 0 and 3 use the weight embedding.weight, which a real system refuses; put all its "
        "uses on one IPU"
    )
    for told in str(report), text:
        assert " ".join(told.split()).count(sentence) == 1


def test_head_of_gpt2_on_another_ipu_then_the_first_insight_mends_it() -> None:
    transformers = pytest.importorskip("transformers", reason="pip install transformers")

    class Gpt2(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            without_dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
            config = transformers.GPT2Config(use_cache=False, **without_dropout)
            self.gpt = transformers.GPT2LMHeadModel(config)
            blocks = self.gpt.transformer.h
            poptorch.BeginBlock(self.gpt.transformer.wte, "embedding", ipu_id=0)
            for index, layer in enumerate(blocks):
                blocks[index] = poptorch.BeginBlock(layer, f"layer {index}", ipu_id=index // 3)
            poptorch.BeginBlock(self.gpt.lm_head, "head", ipu_id=3)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            logits, behind = self.gpt(words).logits[:, :-1], words[:, 1:]
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), behind.flatten())

    def gpt2(code: str = "") -> tuple[poptorch.PoplarExecutor, torch.Tensor]:
        options = poptorch.Options().showCompilationProgressBar(False)
        options.Training.gradientAccumulation(16)
        exec(code, {"options": options, "poptorch": poptorch, "emulator": emulator})
        with torch.device("meta"):
            model, words = Gpt2().half(), torch.empty(32, 256, dtype=torch.long)
        optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
        return poptorch.trainingModel(model, options, optimizer), words

    view = emulator.summary(*gpt2(), system=SYSTEM).view
    first, *others = view["insights"]
    assert "IPUs 0 and 3 use the weight gpt.transformer.wte.weight" in first["text"]
    promised = float(re.search(r"predicts ([\d.]+) ×", first["text"])[1])
    report = emulator.estimate(*gpt2(first["code"]), system=SYSTEM)
    assert not report.spread_weights
    before = view["speed"]["predicted_rows_per_second"]
    assert report.throughput / before - 1 >= 0.8 * (promised - 1) > 0.4
    (fitting,) = (one for one in others if "it fits" in one["text"])
    assert emulator.tile_memory(*gpt2(fitting["code"]), system=SYSTEM).fits
