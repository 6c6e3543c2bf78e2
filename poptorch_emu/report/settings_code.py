"""Lines of code that apply a choice of settings, to paste into a PopTorch program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from poptorch_emu.compile.planner import Planned
from poptorch_emu.compile.settings import NUM_IO_TILES
from poptorch_emu.config import (
    CompileConfig,
    PipelineOrder,
    Recomputation,
    StrategyConfig,
    TableConfig,
)
from poptorch_emu.report.split_report import SplitReport, stages_code
from poptorch_emu.schedule.tables.named import named_table

_SETTER = {
    "activation": "setActivationLocation",
    "weight": "setWeightLocation",
    "optimizer": "setOptimizerLocation",
    "accumulator": "setAccumulatorLocation",
}


def settings_code(settings: Mapping[str, Any], planned: Planned) -> str:
    """Returns the lines of code for some settings of the planner.

    Args:
        settings: values of settings, by the names in `compile.settings.SETTINGS`.
        planned: plan with these settings.
    """
    config, split = planned.inventory.config, planned.split
    lines = [line for line in _locations(settings, config)]
    for name, value in settings.items():
        if name == "proportion":
            ipus = planned.inventory.placed.ipu_ids
            parts = ", ".join(f'"IPU{ipu}": {value}' for ipu in ipus)
            lines.append(f"options.setAvailableMemoryProportion({{{parts}}})")
        elif name in ("split", "num_ipus") and split is not None:
            lines.append(SplitReport.of(split).code())
            lines += [] if "schedule" in settings else _kept_schedule(config.strategy)
        elif name in _LINES:
            lines.append(_LINES[name](value))
    return "\n".join(lines)


def _kept_schedule(strategy: StrategyConfig) -> list[str]:
    """Returns the line that keeps the schedule, which a new execution strategy would reset."""
    own = strategy.table or strategy.order.value
    return [] if own == PipelineOrder.GROUPED.value else [_schedule(own)]


def _schedule(value: str | TableConfig) -> str:
    if isinstance(value, str):
        return f'emulator.set_schedule(options, "{value}")'
    if value.rows:
        return "# Call emulator.set_schedule(options, ...) with your own table again."
    is_usual = value == named_table(value.name)
    count = "" if is_usual else f"v={value.stages_per_ipu}"
    return f"emulator.set_schedule(options, emulator.schedules.{value.name}({count}))"


def _locations(settings: Mapping[str, Any], config: CompileConfig) -> Iterator[str]:
    """Yields one call for each kind of tensor whose location changes."""
    offload = settings.get("offload", "")
    kinds = set(_SETTER if offload == "nothing" else filter(None, offload.split("+")))
    kinds |= {"optimizer"} if settings.get("sharding") else set()
    for kind in sorted(kinds):
        location, threshold = getattr(config.locations, kind), getattr(config.sharding, kind)
        calls = []
        if location.is_on_chip is not None:
            calls.append(f".useOnChipStorage({location.is_on_chip})")
        if threshold is not None:
            calls.append(".useReplicatedTensorSharding(True)")
            calls.append(f".minElementsForReplicatedTensorSharding({threshold})")
        chain = "".join(f"\n    {call}" for call in ("poptorch.TensorLocationSettings()", *calls))
        yield f"options.TensorLocations.{_SETTER[kind]}({chain}\n)"


_OVERLAP = (
    "options.setExecutionStrategy(poptorch.ShardedExecution())\n"
    f"options.TensorLocations.numIOTiles({NUM_IO_TILES})\n"
    "mode = poptorch.OverlapMode.OverlapAccumulationLoop"
)


def _overlap(value: str) -> str:
    marks = []
    if "inputs" in value:
        marks.append("# Every input, first in forward: x = poptorch.set_overlap_for_input(x, mode)")
    if "results" in value:
        marks.append(
            "# Every result, last in forward: y = poptorch.set_overlap_for_output(y, mode)"
        )
    return "\n".join([_OVERLAP, *marks])


_LINES: Mapping[str, Callable[[Any], str]] = {
    "accumulation": lambda value: f"options.Training.gradientAccumulation({value})",
    "replicas": lambda value: f"options.replicationFactor({value})",
    "device_iterations": lambda value: f"options.deviceIterations({value})",
    "micro_batch": lambda value: f"# Rows of a micro-batch: batch_size={value} of the DataLoader.",
    "stages": lambda value: stages_code(enumerate(value)),
    "schedule": _schedule,
    "recomputation": lambda value: (
        f'options._Popart.set("autoRecomputation", {Recomputation[value.upper()].value})'
    ),
    "output_mode": lambda value: f"options.outputMode(poptorch.OutputMode.{value})",
    "overlap": _overlap,
}
