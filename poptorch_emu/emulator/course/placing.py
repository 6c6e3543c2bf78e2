"""Wrapped models of the exercises, and the IPUs of their layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.emulator.course.exercise import Wrapped
from poptorch_emu.emulator.course.layers import Layers
from poptorch_emu.executor.factories import trainingModel
from poptorch_emu.ops.block_annotations import BeginBlock
from poptorch_emu.optim import AdamW
from poptorch_emu.options import Options, PipelinedExecution
from poptorch_emu.options.strategies import strategy_config
from poptorch_emu.report.time_report import TimeReport

# System of all machine figures in the course.
SYSTEM = "bow-pod16"


def plain_options(accumulation: int) -> Options:
    """Returns options with `accumulation` micro-batches in an update."""
    options = Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    return options


def half_layers(
    hidden: Sequence[int], width: int, rows: int, options: Options, ipus: Sequence[int]
) -> Wrapped:
    """Returns a wrapped model in float16 on the meta device, and its inputs.

    Args:
        hidden: number of hidden features of each layer.
        width: number of features of a row.
        rows: number of rows of a call.
        options: options of the model.
        ipus: the IPU of each layer; layers are blocks named `layer0`, `layer1` and so on.
    """
    with torch.device("meta"):
        model = Layers(hidden, width).half()
        inputs = torch.empty(2, rows, width, dtype=torch.half).unbind()
    for number, (layer, ipu) in enumerate(zip(model.layers, ipus, strict=True)):
        BeginBlock(layer, f"layer{number}", ipu_id=ipu)
    optimizer = AdamW(model.parameters(), lr=1e-3, accum_type=torch.half)
    return trainingModel(model, options, optimizer), *inputs


def fault_of_ipus(report: TimeReport, num_ipus: int) -> str:
    """Returns a sentence if the stages are not on `num_ipus` IPUs; "" if they are."""
    used = len(ipus_in_order(report))
    if used == num_ipus:
        return ""
    return (
        f"The stages use {used} {'IPU' if used == 1 else 'IPUs'}, but the task has {num_ipus}. An "
        f"execution strategy can say so: poptorch.Stage(...).ipu({num_ipus - 1}) puts a stage on "
        "the last one."
    )


def ipus_in_order(report: TimeReport) -> list[int]:
    """Returns the IPUs that run a block, each once, in the order of the stages."""
    return list(dict.fromkeys(stage.ipu for stage in report.stages if any(stage.blocks)))


def fault_of_blocks(strategy: PipelinedExecution, num_layers: int) -> str:
    """Returns a sentence with the layers that no stage has; "" if each layer has a stage."""
    stages = strategy_config(strategy).stages
    named = {block for stage in stages for block in stage.block_ids}
    missing = [name for name in map("layer{}".format, range(num_layers)) if name not in named]
    if not stages or not missing:
        return ""
    return (
        f"No stage has {', '.join(missing)}. The stages should have all {num_layers} layers, "
        f"layer0 to layer{num_layers - 1}, each once."
    )


def evenly(num_layers: int, num_ipus: int) -> list[int]:
    """Returns the IPU of each layer; numbers of layers on two IPUs differ by 1 at most."""
    return [number * num_ipus // num_layers for number in range(num_layers)]
