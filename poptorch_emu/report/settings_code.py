"""The lines that make a choice of settings, to be pasted into a program of PopTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from poptorch_emu.compile.settings import NUM_IO_TILES
from poptorch_emu.config import Recomputation
from poptorch_emu.plan.time.split import Split
from poptorch_emu.report.split_report import SplitReport

_SETTER = {
    "activation": "setActivationLocation",
    "weight": "setWeightLocation",
    "optimizer": "setOptimizerLocation",
    "accumulator": "setAccumulatorLocation",
}


def settings_code(
    settings: Mapping[str, Any], split: Split | None = None, ipus: tuple[int, ...] = (0,)
) -> str:
    """Returns the lines for some settings of the planner.

    Args:
        settings: values by the names of `compile.settings.SETTINGS`.
        split: where "num_ipus" is one of them.
        ipus: the user's numbers of the IPUs of a replica.
    """
    lines = [line for line in _locations(settings)]
    for name, value in settings.items():
        if name == "proportion":
            parts = ", ".join(f'"IPU{ipu}": {value}' for ipu in ipus)
            lines.append(f"options.setAvailableMemoryProportion({{{parts}}})")
        elif name == "num_ipus" and split is not None:
            lines.append(SplitReport.of(split).code())
        elif name in _LINES:
            lines.append(_LINES[name](value))
    return "\n".join(lines)


def _locations(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yields where each kind of tensor is, in one call for each."""
    changes: dict[str, list[str]] = {}
    offload = settings.get("offload")
    if offload:
        is_on_chip = offload == "nothing"
        kinds = tuple(_SETTER) if is_on_chip else offload.split("+")
        changes = {kind: [f".useOnChipStorage({is_on_chip})"] for kind in kinds}
    if settings.get("sharding"):
        changes.setdefault("optimizer", []).append(".useReplicatedTensorSharding(True)")
    for kind, calls in changes.items():
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
        marks.append("# In forward, first: x = poptorch.set_overlap_for_input(x, mode)")
    if "results" in value:
        marks.append("# In forward, last: y = poptorch.set_overlap_for_output(y, mode)")
    return "\n".join([_OVERLAP, *marks])


_LINES: Mapping[str, Callable[[Any], str]] = {
    "accumulation": lambda value: f"options.Training.gradientAccumulation({value})",
    "replicas": lambda value: f"options.replicationFactor({value})",
    "device_iterations": lambda value: f"options.deviceIterations({value})",
    "micro_batch": lambda value: f"# Rows of a micro-batch: batch_size={value} of the DataLoader.",
    "schedule": lambda value: f'emulator.set_schedule(options, "{value}")',
    "recomputation": lambda value: (
        f'options._Popart.set("autoRecomputation", {Recomputation[value.upper()].value})'
    ),
    "output_mode": lambda value: f"options.outputMode(poptorch.OutputMode.{value})",
    "overlap": _overlap,
}
