"""Exercise 2: reduce the bubble of a grouped pipeline by more micro-batches in a bounded batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from poptorch_emu.config import PipelineOrder
from poptorch_emu.emulator.course.exercise import Exercise, Findings, Wrapped
from poptorch_emu.emulator.course.layers import Layers
from poptorch_emu.emulator.course.placing import fault_of_ipus
from poptorch_emu.emulator.estimates import estimate
from poptorch_emu.executor.factories import trainingModel
from poptorch_emu.ops.block_annotations import BeginBlock
from poptorch_emu.optim import SGD
from poptorch_emu.options import Options
from poptorch_emu.schedule.free_run import unit_lengths

ROWS, MOST_ROWS, MOST_BUBBLE, NUM_IPUS = 8, 512, 0.10, 4
_WIDTH = 8


def _wrap(options: Options) -> Wrapped:
    rows = _rows_of_update(options) * options.device_iterations
    with torch.device("meta"):
        model = Layers((_WIDTH,) * NUM_IPUS, _WIDTH)
        inputs = torch.empty(2, rows, _WIDTH).unbind()
    for ipu, layer in enumerate(model.layers):
        BeginBlock(layer, f"layer{ipu}", ipu_id=ipu)
    training = trainingModel(model, options.clone(), SGD(model.parameters(), lr=0.1))
    return training, *inputs


def _rows_of_update(options: Options) -> int:
    return int(ROWS * options.Training.gradient_accumulation * options.replication_factor)


def _assess(options: Options) -> Findings:
    report = estimate(*_wrap(options))
    if fault := fault_of_ipus(report, NUM_IPUS):
        return Findings((fault,))
    grid = report.grid
    if grid.name != PipelineOrder.GROUPED.value:
        return Findings((
            "The schedule is another one. Other schedules are exercise 5; here it stays PopTorch's "
            "own, which is the default.",
        ))  # fmt: skip
    bubble = grid.bubble(unit_lengths)
    accumulation = options.Training.gradient_accumulation
    facts = (f"{accumulation} micro-batches in an update: the bubble is {bubble:.1%}.",)
    return Findings(tuple(_faults(options, bubble)), facts)


def _faults(options: Options, bubble: float) -> Iterator[str]:
    if bubble > MOST_BUBBLE:
        yield (
            f"The IPUs wait for {bubble:.1%} of the time, but at most {MOST_BUBBLE:.0%} is asked "
            "for. The pipeline fills and drains once for each update: give an update more "
            "micro-batches."
        )
        if options.device_iterations > 1:
            yield (
                f"Device iterations do not fill the bubble: each of the "
                f"{options.device_iterations} updates of a call fills and drains the pipeline anew."
            )
    rows = _rows_of_update(options)
    if rows > MOST_ROWS:
        yield (
            f"An update sees {rows:,} rows, but at most {MOST_ROWS} are allowed: a larger batch "
            "trains another model."
        )


EXERCISE = Exercise("fill the bubble", "poptorch.Options()", (Options,), _assess, _wrap)
