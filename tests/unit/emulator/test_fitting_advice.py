"""A report on a model that does not fit ends with lines that make it fit."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.compile.fitting import LEAST_SAVED
from poptorch_emu.machine.links import all_reduce_seconds

pytestmark = [
    pytest.mark.feature("emulator.summary", fidelity="modelled"),
    pytest.mark.feature("emulator.tile_memory", fidelity="modelled"),
]

SYSTEM = "bow-pod16"
FITS = re.compile(r"it (fits|may fit): the fullest tile")


class Encoder(torch.nn.Module):
    def __init__(self, num_layers: int, width: int, num_ipus: int) -> None:
        super().__init__()
        self.num_ipus = num_ipus
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(num_layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            ipu = index * self.num_ipus // len(self.layers)
            poptorch.Block.start(f"layer {index}", ipu_id=ipu)
            x = torch.relu(layer(x))
        return poptorch.identity_loss(x.pow(2).mean(), "none")


def built(
    code: str = "", *, layers: int, width: int, rows: int, num_ipus: int = 1, replicas: int = 1
) -> tuple[poptorch.PoplarExecutor, torch.Tensor]:
    options = poptorch.Options().showCompilationProgressBar(False).replicationFactor(replicas)
    options.Training.gradientAccumulation(16)
    exec(code, {"options": options, "poptorch": poptorch, "emulator": emulator})
    given = re.search(r"batch_size=(\d+)", code)
    rows = int(given[1]) if given else rows
    with torch.device("meta"):
        model = Encoder(layers, width, num_ipus)
        batch = torch.empty(16 * replicas * rows, width)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1)
    return poptorch.trainingModel(model, options, optimizer), batch


MODELS = {
    "too many weights": {"layers": 16, "width": 2048, "rows": 8},
    "too many rows": {"layers": 4, "width": 2048, "rows": 16384, "num_ipus": 4},
    "too many of both": {"layers": 24, "width": 2048, "rows": 4096, "num_ipus": 2},
    "replicas": {"layers": 14, "width": 2048, "rows": 8, "replicas": 16},
}


@pytest.mark.parametrize("name", MODELS)
def test_model_that_does_not_fit_then_has_lines_with_which_it_does(name: str) -> None:
    model = MODELS[name]
    view = emulator.summary(*built(**model), system=SYSTEM).view
    assert view["fits"] is False
    (advice,) = (insight for insight in view["insights"] if FITS.search(insight["text"]))
    assert advice["kind"] == "problem" and advice["code"]
    mended = built(advice["code"], **model)
    tiles = emulator.tile_memory(*mended, system=SYSTEM)
    assert tiles.fits
    told = int(re.search(r"then holds ([\d,]+) of 624 KiB", advice["text"])[1].replace(",", ""))
    assert max(map(tiles.largest_bytes, tiles.ipus)) / 1024 == pytest.approx(told, rel=0.02, abs=1)
    promised = float(re.search(r"predicts ([\d.]+) × as many rows", advice["text"])[1])
    before, after = (
        emulator.estimate(*each, system=SYSTEM).throughput for each in (built(**model), mended)
    )
    assert after / before == pytest.approx(promised, rel=0.05, abs=0.01)
    now = max(ipu["fullest_tile_bytes"] for ipu in view["ipus"])
    ways = {way["name"]: way for way in view["memory"]["ways_out"]}
    assert "keep the optimiser's state in streaming memory" in ways
    for way in ways.values():
        assert way["saves_bytes"] == now - way["then_bytes"] >= LEAST_SAVED * now
        assert "options." in way["text"] or "batch_size" in way["text"]


class Tied(Encoder):
    """A model of words whose head, on the last IPU, is tied to the embedding on the first."""

    def __init__(self, num_layers: int, width: int, num_ipus: int) -> None:
        super().__init__(num_layers, width, num_ipus)
        self.embedding = torch.nn.Embedding(39_321, width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        poptorch.Block.start("embedding", ipu_id=0)
        x = self.embedding(words)
        for index, layer in enumerate(self.layers):
            poptorch.Block.start(f"layer {index}", ipu_id=index * self.num_ipus // len(self.layers))
            x = torch.relu(layer(x))
        poptorch.Block.start("head", ipu_id=self.num_ipus - 1)
        logits = torch.nn.functional.linear(x, self.embedding.weight)
        return torch.nn.functional.cross_entropy(logits, words)


def test_weight_on_two_ipus_that_is_too_large_beside_layers_then_it_has_an_ipu_of_its_own() -> None:
    def tied(code: str = "") -> tuple[poptorch.PoplarExecutor, torch.Tensor]:
        options = poptorch.Options().showCompilationProgressBar(False)
        options.Training.gradientAccumulation(16)
        exec(code, {"options": options, "poptorch": poptorch, "emulator": emulator})
        with torch.device("meta"):
            model, words = Tied(12, 1024, 4), torch.empty(16 * 64, dtype=torch.long)
        optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1)
        return poptorch.trainingModel(model, options, optimizer), words

    view = emulator.summary(*tied(), system=SYSTEM).view
    (advice,) = (one for one in view["insights"] if FITS.search(one["text"]))
    # The first insight is about an error on a real system, and the same cut also corrects it.
    assert "IPUs 0 and 3 use the weight embedding.weight" in view["insights"][0]["text"]
    assert "poptorch.Stage('embedding').ipu(0)" in advice["code"]
    assert "poptorch.Stage('head').ipu(0)" in advice["code"]
    assert emulator.tile_memory(*tied(advice["code"]), system=SYSTEM).fits


def test_pipeline_too_long_for_its_micro_batches_then_more_of_them_are_accumulated() -> None:
    model = {"layers": 32, "width": 4096, "rows": 8, "num_ipus": 4}
    view = emulator.summary(*built(**model), system=SYSTEM).view
    (advice,) = (one for one in view["insights"] if FITS.search(one["text"]))
    assert "differently over 16 IPUs" in advice["text"]
    assert "options.Training.gradientAccumulation(32)" in advice["code"]
    mended, batch = built(advice["code"], **model)
    assert emulator.tile_memory(mended, torch.cat([batch, batch]), system=SYSTEM).fits


def test_model_that_does_not_fit_then_no_remedy_needs_more_memory() -> None:
    view = emulator.summary(*built(layers=32, width=2048, rows=512, num_ipus=4), system=SYSTEM).view
    assert not view["fits"]
    texts = [one["text"] for one in view["insights"]]
    assert not any("Recompute nothing" in text for text in texts)


def test_model_of_which_nothing_fits_then_that_is_said_with_the_largest_need() -> None:
    view = emulator.summary(*built(layers=1, width=32768, rows=1), system="mk2-pod4").view
    (advice,) = (insight for insight in view["insights"] if "Nothing" in insight["text"])
    assert advice["code"] is None and advice["kind"] == "problem"
    assert "model.half()" in advice["text"]
    assert (
        "The largest single need, " in advice["text"] and "KiB of a tile of IPU 0" in advice["text"]
    )


def test_model_that_fits_then_nothing_is_a_problem() -> None:
    view = emulator.summary(*built(layers=2, width=256, rows=8), system=SYSTEM).view
    assert view["fits"] and not [one for one in view["insights"] if one["kind"] == "problem"]


@pytest.mark.parametrize(("num_ipus", "replicas"), [(4, 64), (1, 256)])
def test_job_on_256_ipus_then_is_planned_within_a_minute(
    num_ipus: int, replicas: int, tmp_path: Path
) -> None:
    shape = {"layers": 8, "width": 512, "rows": 8, "num_ipus": num_ipus}
    system, begin = "bow-pod256", time.perf_counter()
    job = built(**shape, replicas=replicas)
    plan = emulator.estimate(*job, system=system)
    assert plan.num_replicas == replicas and not plan.assumptions[1:]
    tiles = emulator.tile_memory(*job, system=system)
    assert tiles.fits and len(tiles.ipus) == num_ipus
    sweep = {"replicas": [replicas // 2, replicas]}
    half, whole = emulator.what_if(*job, sweep=sweep, system=system).points
    assert 1.5 < whole.throughput / half.throughput < 2
    assert whole.throughput == pytest.approx(plan.throughput)
    path = emulator.page(job[0], tmp_path / "page.html", job[1], system=system)
    assert time.perf_counter() - begin < 60 and path.stat().st_size > 1e6
    gradients = 4 * 8 // num_ipus * 512 * 513
    seconds = all_reduce_seconds(gradients, replicas, num_ipus)
    assert plan.updates[0].reduce_cycles / plan.clock_hz == pytest.approx(seconds, rel=0.1)


def test_job_that_runs_then_is_still_limited_to_what_a_process_may_have() -> None:
    options = poptorch.Options().showCompilationProgressBar(False).replicationFactor(128)
    model = poptorch.inferenceModel(torch.nn.Linear(4, 4), options)
    assert emulator.estimate(model, torch.zeros(128, 4)).num_replicas == 128
    with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(128\)"):
        model.compile(torch.zeros(128, 4))
