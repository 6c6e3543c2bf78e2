"""Random models with random settings, and properties of their plans."""

from __future__ import annotations

import itertools
import math
import random
import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.compile.settings import SCHEDULES
from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.emulator.lab import fine_sweep
from poptorch_emu.emulator.lab_points import answers, planned_for
from poptorch_emu.report.formulas import formulas_of

SYSTEMS = ("bow-pod16", "mk2-pod4")


@dataclass(frozen=True)
class Case:
    """A model of linear layers, and its settings by the names of `emulator.what_if`.

    Attributes:
        ipus: IPU of each layer; each layer is a block.
        rows: number of rows of a micro-batch.
        lines: further lines of code that change `options`.
    """

    widths: tuple[int, ...]
    ipus: tuple[int, ...]
    rows: int
    accumulation: int
    device_iterations: int
    replicas: int
    schedule: str
    is_adam: bool
    recomputation: str | None = None
    lines: str = ""


class Layers(nn.Module):
    """Linear layers in separate blocks; transfers may be overlapped."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        pairs = itertools.pairwise(case.widths)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairs)
        self.ipus, self.lines = case.ipus, case.lines

    def forward(self, x: torch.Tensor) -> Any:
        mode = poptorch.OverlapMode.OverlapAccumulationLoop
        if "for_input" in self.lines:
            x = poptorch.set_overlap_for_input(x, mode)
        for index, layer in enumerate(self.layers):
            poptorch.Block.start(f"layer{index}", ipu_id=self.ipus[index])
            x = torch.relu(layer(x))
        loss = poptorch.identity_loss(x.pow(2).mean(), "none")
        return poptorch.set_overlap_for_output(x, mode) if "for_output" in self.lines else x, loss


def random_case(seed: int) -> Case:
    """Returns a model whose schedule suits its stages and micro-batches."""
    draw = random.Random(seed)
    num_ipus = draw.choice((1, 2, 2, 4))
    schedule = draw.choice(SCHEDULES) if num_ipus > 1 else "grouped"
    per_ipu = 2 if schedule in ("interleaved_1f1b", "looped_bfs") else 1
    per_ipu = 2 if schedule in ("zero_bubble_v", "dualpipe_v") else per_ipu
    stages = num_ipus * per_ipu
    count = stages * draw.choice((1, 2, 3))
    widths = tuple(draw.choice((64, 256, 1024)) for _ in range(count + 1))
    # A table assigns stages to IPUs; the blocks only separate the stages.
    ipus = tuple(index * stages // count for index in range(count))
    return Case(
        widths,
        ipus,
        draw.choice((1, 16, 128)),
        stages * draw.choice((2, 8, 32)) if num_ipus > 1 else draw.choice((1, 4, 64)),
        draw.choice((1, 1, 8)),
        draw.choice((1, 1, 2)),
        schedule,
        draw.random() < 0.5,
        draw.choice((None, None, "none", "all")),
    )


def built(case: Case) -> tuple[Any, torch.Tensor]:
    """Returns a wrapped model on the meta device and its batch."""
    options = poptorch.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
    options.deviceIterations(case.device_iterations).replicationFactor(case.replicas)
    options.Training.gradientAccumulation(case.accumulation)
    if case.recomputation is not None:
        options._Popart.set("autoRecomputation", {"none": 0, "all": 4}[case.recomputation])
    if case.schedule != "grouped":
        emulator.set_schedule(options, case.schedule)
    exec(case.lines, {"options": options, "poptorch": poptorch, "emulator": emulator})
    rows = re.search(r"batch_size=(\d+)", case.lines)
    count = options.device_iterations * options.replication_factor
    count *= options.Training.gradient_accumulation * (int(rows[1]) if rows else case.rows)
    with torch.device("meta"):
        model, batch = Layers(case), torch.empty(count, case.widths[0])
    kind = poptorch.optim.AdamW if case.is_adam else poptorch.optim.SGD
    return poptorch.trainingModel(model, options, kind(model.parameters(), lr=0.1)), batch


def random_sweep(case: Case, seed: int) -> dict[str, list[Any]]:
    """Returns values for one or two settings of a model, including its own values."""
    draw = random.Random(seed)
    choices: dict[str, list[Any]] = {
        "accumulation": [case.accumulation, 2 * case.accumulation, 8 * case.accumulation],
        "replicas": [case.replicas, 2, 4],
        "device_iterations": [case.device_iterations, 4],
        "rows": [case.rows, 4 * case.rows],
        "recomputation": ["none", "all"],
        "schedule": [case.schedule, "grouped", "one_f_one_b"],
    }
    names = draw.sample(sorted(choices), 2)
    return {name: draw.sample(choices[name], len(choices[name])) for name in names}


def check_sweep(case: Case, seed: int, system: str) -> None:
    """Checks that each point is the plan of a model with its settings, in any order of points."""
    sweep = random_sweep(case, seed)
    named = {"micro_batch" if name == "rows" else name: each for name, each in sweep.items()}
    report = emulator.what_if(*built(case), sweep=named, system=system)
    planner = planner_of(*_split(built(case)), {"system": system})
    choices = list(itertools.product(*sweep.values()))
    for values, point in reversed(list(zip(choices, report.points, strict=True))):
        other = replace(case, **dict(zip(sweep, values, strict=True)))
        try:
            alone = emulator.estimate(*built(other), system=system)
        except poptorch.Error as error:
            assert point.limit == error.message, (other, point)
            continue
        assert point.throughput == alone.throughput, (other, point)
        assert point.limit == alone.bottleneck
        again = planner.plan(dict(zip(named, values, strict=True)))
        assert again.time.ipus == alone.ipus and again.time.stages == alone.stages
        tiles = emulator.tile_memory(*built(other), system=system)
        assert again.tiles.most_bytes == tiles.most_bytes, other


def check_laboratory(count: int, system: str) -> int:
    """Checks that random choices of a live laboratory have the figures of a model with their code.

    Each formula gives the figure beside it.

    Returns:
        number of choices that have a plan.
    """
    case = Case((64,) * 9, (0, 0, 1, 1, 2, 2, 3, 3), 4, 16, 1, 1, "grouped", is_adam=True)
    planner = planner_of(*_split(built(case)), {"system": system})
    # Few sizes of micro-batches, because the model is traced for each.
    sweep = {**fine_sweep(planner), "micro_batch": (1, 4, 7, 32)}
    draw, num_planned, answer = random.Random(0), 0, answers(planner, sweep)
    for _ in range(count):
        indices = [draw.randrange(len(each)) for each in sweep.values()]
        values = {name: each[at] for (name, each), at in zip(sweep.items(), indices, strict=True)}
        question = ".".join(map(str, indices))
        try:
            planned, code = planned_for(planner, values)
        except poptorch.Error as error:
            assert answer(question) == {"fault": error.message}
            continue
        num_planned += 1
        point = answer(question)
        assert point is not None and point["code"] == code
        *lines, last = code.splitlines()
        model, batch = built(replace(case, lines="\n".join(lines)))
        alone = eval(last, {"emulator": emulator, "model": model, "inputs": [batch]})
        assert point["rows_per_second"] == alone.throughput, values
        assert point["step_seconds"] == alone.step_seconds
        assert point["num_micro_batches"] == alone.grid.num_micro_batches
        assert point["bubble"] == alone.grid.bubble(alone.cycles_of)
        for formula in formulas_of(planned):
            found = eval(formula.expression, {}, dict(formula.terms))
            rounding = 1.0 if formula.unit == "B" else 0.0
            assert found == pytest.approx(formula.value, rel=1e-9, abs=rounding), (values, formula)
    return num_planned


def check_parts(case: Case, system: str) -> None:
    """Checks that the parts of a step add up to it, and that all plans name one first cause."""
    plan = emulator.estimate(*built(case), system=system)
    assert sum(plan.shares.values()) == pytest.approx(1.0)
    for ipu in plan.ipus:
        assert math.fsum(ipu.seconds.values()) == pytest.approx(plan.step_seconds)
        assert min(ipu.seconds.values()) >= -1e-9 * plan.step_seconds
    view = emulator.summary(*built(case), system=system).view
    assert view["bottleneck"] == plan.bottleneck


def check_remedies(case: Case, system: str) -> int:
    """Checks that each change has the promised effect in a new model; returns their number."""
    view = emulator.summary(*built(case), system=system).view
    before = emulator.estimate(*built(case), system=system)
    check_first_insight(view)
    promises = 0
    for insight in view["insights"]:
        told = re.search(r"predicts ([\d.]+) ×", insight["text"])
        if told is None or not insight["code"] or "fullest tile" in insight["text"]:
            continue
        after = emulator.estimate(*built(replace(case, lines=insight["code"])), system=system)
        gain, promised = after.throughput / before.throughput - 1, float(told[1]) - 1
        # The text shows the gain with two decimal places.
        assert gain >= 0.95 * promised - 0.005, (case, insight)
        changes = after.rows_per_update != before.rows_per_update
        assert ("changes the training" in insight["text"]) == changes, (case, insight)
        promises += 1
    return promises


# Words of the insight about each bottleneck.
_WORDS = {
    "waiting for the host's own work": "wait for the program on the host",
    "inputs from the host": "waits for inputs",
    "results to the host": "waits for results",
    "starting calls": "Starting a call",
    "streaming memory": "waits for streaming memory",
    "data from other IPUs": "waits for data from other IPUs",
    "one slow stage": "times the mean",
    "one IPU working at a time": "Only one IPU works",
    "filling and emptying the pipeline": "Filling and emptying",
    "the update": "Updating the weights",
    "the all-reduce": "Adding up the gradients",
    "recomputation": "recomputes activations",
    "a low memory proportion": "Matrix products have little memory",
    "small micro-batches": "Micro-batches are small",
    "computing": "computes for",
}


def check_first_insight(view: dict[str, Any]) -> None:
    """Checks that the first insight, after problems, names the bottleneck and its share."""
    name, _, rest = view["bottleneck"].partition(" (")
    first = next(one["text"] for one in view["insights"] if one["kind"] != "problem")
    assert _WORDS[name] in first, (name, first)
    told = re.findall(r"([\d.]+)% of a step", first)[0]
    assert abs(float(told) - int(rest.partition("%")[0])) <= 0.5, (view["bottleneck"], first)


def check_plans(seed: int) -> str:
    """Checks a random model in all these ways, for `make fuzz`."""
    case, system = random_case(seed), SYSTEMS[seed % 2]
    check_parts(case, system)
    check_sweep(case, seed, system)
    check_remedies(case, system)
    return str(case)


def _split(given: tuple[Any, torch.Tensor]) -> tuple[Any, tuple[torch.Tensor]]:
    return given[0], (given[1],)
