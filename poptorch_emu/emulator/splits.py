"""Search for the best cuts of a model into pipeline stages."""

from __future__ import annotations

from typing import Any

from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.emulator.given_values import check_model
from poptorch_emu.enums import AutoStage
from poptorch_emu.errors import make_error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.ops.block_annotations import BeginBlock, removeBlocks
from poptorch_emu.options import PipelinedExecution, Stage
from poptorch_emu.report.split_report import SplitReport


def plan_split(model: PoplarExecutor, *inputs: Any, num_ipus: int, **keywords: Any) -> SplitReport:
    """Returns the split over IPUs whose slowest stage is fastest, among those that fit (modelled).

    The model is cut between the user's blocks. It is cut between modules if it has fewer than two
    blocks, or if modules begin all of them (`BeginBlock`) and there are no more blocks than IPUs.
    Stages are contiguous, one for each IPU, and recompute as a pipeline does by default. Blocks
    that share a trained weight are on one IPU: in one stage, or the last of them in a separate
    stage at the end that runs on the first IPU. The memory of a stage is only an estimate before
    it is compiled. If no split fits, the result is the fastest of those that come nearest.

    Args:
        model: wrapped model, compiled or not; the present IPUs of its blocks do not matter.
        inputs: arguments of a call; may be left out for a compiled model.
        num_ipus: number of IPUs of a replica.
        keywords: further arguments as for `estimate`.

    Raises:
        Error: there are fewer blocks or modules than IPUs, or no split keeps a shared weight on
            one IPU.
    """
    planner = planner_of(model, inputs, keywords, ignores_schedule=True)
    return SplitReport.of(planner.split(num_ipus))


def autoplace(model: PoplarExecutor, *inputs: Any, num_ipus: int, **keywords: Any) -> SplitReport:
    """Plans a split and applies it; printing the result shows code to paste (modelled).

    Arguments are those of `plan_split`; the model must not be compiled yet.

    Raises:
        Error: the model is compiled, or `plan_split` finds no split.
    """
    check_model(model)
    if model.isCompiled():
        raise make_error("A compiled model cannot be placed anew: call destroy() on it first.")
    split = plan_split(model, *inputs, num_ipus=num_ipus, **keywords)
    if split.is_of_blocks:
        stages = [Stage(*stage.units).ipu(stage.ipu) for stage in split.stages]
        model._on_device.place(PipelinedExecution(*stages))
    else:
        removeBlocks(model.model)
        if split.is_circle or split.replaces_blocks:
            numbering = AutoStage.AutoIncrement if split.is_circle else AutoStage.SameAsIpu
            model._on_device.place(PipelinedExecution(numbering))
        for stage in split.stages:
            BeginBlock(model.model.get_submodule(stage.units[0]), ipu_id=stage.ipu)
    return split
