"""Where to cut a model into the stages of a pipeline."""

from __future__ import annotations

from typing import Any

from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.emulator.given_values import check_model
from poptorch_emu.enums import AutoStage
from poptorch_emu.errors import make_error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.ops.block_annotations import BeginBlock
from poptorch_emu.options import PipelinedExecution, Stage
from poptorch_emu.report.split_report import SplitReport


def plan_split(model: PoplarExecutor, *inputs: Any, num_ipus: int, **keywords: Any) -> SplitReport:
    """Returns the split over IPUs whose slowest stage is fastest, among those that fit (modelled).

    What is cut between are the user's blocks; a model with fewer than two is cut between its
    modules. Stages are contiguous, one for each IPU, and recompute as a pipeline does by default.
    Blocks that share a trained weight are on one IPU: in one stage, or the last of them in a stage
    of its own at the end, on the first IPU again. How much a stage holds is only known roughly
    before it is compiled. If no split fits, the result is the fastest of those that come nearest.

    Args:
        model: compiled or not; where its blocks are now does not matter.
        inputs: as for a call; of a compiled model they may be left out.
        num_ipus: of a replica.
        keywords: as for `estimate`.

    Raises:
        Error: there are fewer blocks or modules than IPUs, or no split keeps a shared weight on
            one IPU.
    """
    planner = planner_of(model, inputs, keywords, ignores_schedule=True)
    return SplitReport.of(planner.split(num_ipus))


def autoplace(model: PoplarExecutor, *inputs: Any, num_ipus: int, **keywords: Any) -> SplitReport:
    """Plans a split and makes it: `print` the result for code to paste (modelled).

    Arguments are those of `plan_split`; the model must not be compiled yet.

    Raises:
        Error: the model is compiled, or as `plan_split` does.
    """
    check_model(model)
    if model.isCompiled():
        raise make_error("A compiled model cannot be placed anew: call destroy() on it first.")
    split = plan_split(model, *inputs, num_ipus=num_ipus, **keywords)
    if split.is_of_blocks:
        stages = [Stage(*stage.units).ipu(stage.ipu) for stage in split.stages]
        model._on_device.place(PipelinedExecution(*stages))
    else:
        if split.is_circle:
            model._on_device.place(PipelinedExecution(AutoStage.AutoIncrement))
        for stage in split.stages:
            BeginBlock(model.model.get_submodule(stage.units[0]), ipu_id=stage.ipu)
    return split
