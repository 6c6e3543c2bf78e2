"""Schedule and memory of a model before anything runs; compiling it is enough."""

from __future__ import annotations

from typing import Any

from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.emulator.given_values import wrapped
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.report.memory_report import MemoryReport
from poptorch_emu.report.schedule_report import SchedulePlan
from poptorch_emu.report.tile_report import TileReport


def schedule(model: PoplarExecutor) -> SchedulePlan:
    """Returns the actions of each IPU of a compiled model, in their slots (exact).

    Raises:
        Error: the model is not compiled.

    Example:
        >>> class Model(torch.nn.Module):
        ...     def forward(self, x):
        ...         with poptorch.Block("first", ipu_id=0):
        ...             x = torch.relu(x)
        ...         with poptorch.Block("second", ipu_id=1):
        ...             return x + 1

        >>> inference = poptorch.inferenceModel(Model(), poptorch.Options().deviceIterations(3))
        >>> inference.compile(torch.ones(3))
        >>> print(emulator.schedule(inference))
        slot   0     1     2     3
               fill  main  main  flush
        IPU 0  0F0   0F1   0F2
        IPU 1        1F0   1F1   1F2
        <BLANKLINE>
        stage 0: IPU 0, blocks first
        stage 1: IPU 1, blocks second
    """
    model = wrapped(model)
    executable = model._compiled()
    is_table = executable.config.strategy.table is not None
    return SchedulePlan.of(executable, model._on_device.times() if is_table else None)


def memory(model: PoplarExecutor, *inputs: Any, **keywords: Any) -> MemoryReport:
    """Returns the bytes of each IPU on chip and in streaming memory, by content (modelled).

    Arguments are those of `estimate`; with inputs, the model need not be compiled. `io` has no
    effect.

    Raises:
        Error: the model is not compiled and no inputs are given, or it cannot be captured.
    """
    model = wrapped(model)
    if not inputs and not keywords:
        made = model._compiled()
        return MemoryReport.of_plan(made.memory, made.graph, made.partition, made.config)
    planned = planner_of(model, inputs, keywords).plan()
    found = planned.inventory
    return MemoryReport.of_plan(planned.memory, found.graph, found.placed, found.config)


def tile_memory(model: PoplarExecutor, *inputs: Any, **keywords: Any) -> TileReport:
    """Returns the bytes that the tiles of each IPU would hold, and whether they fit (modelled).

    `docs/fidelity.md` compares such figures with published ones. Arguments are those of
    `estimate`; with inputs, the model need not be compiled. `io` has no effect.

    Raises:
        Error: the system is unknown, or the model cannot be captured.
    """
    model = wrapped(model)
    if not inputs and not keywords:
        return TileReport.of(model._compiled().tiles)
    return TileReport.of(planner_of(model, inputs, keywords).plan().tiles)
