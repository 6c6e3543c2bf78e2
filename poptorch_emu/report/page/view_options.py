"""The settings of a report, by the names of their setters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

from poptorch_emu.config import CompileConfig
from poptorch_emu.enums import OutputMode

# Setter of each field of `CompileConfig`, or of a group of its fields. Users cannot set the other
# fields, which follow from the model, the optimiser, the system or other settings.
SETTERS: Mapping[str, str] = {
    "anchors": "anchorTensor",
    "auto_round_num_ipus": "autoRoundNumIPUs",
    "broadcast_buffers": "broadcastBuffers",
    "cache_dir": "enableExecutableCaching",
    "checks_floating_point": "Precision.enableFloatingPointExceptions",
    "device_iterations": "deviceIterations",
    "gradient_accumulation": "Training.gradientAccumulation",
    "host_recomputation": "emulator.set_recomputation",
    "input_group_size": "inputReplicaGrouping: input_group_size",
    "input_group_type": "inputReplicaGrouping: input_group_type",
    "ipu_id": "useIpuId",
    "locations.accumulator": "TensorLocations.setAccumulatorLocation",
    "locations.activation": "TensorLocations.setActivationLocation",
    "locations.optimizer": "TensorLocations.setOptimizerLocation",
    "locations.weight": "TensorLocations.setWeightLocation",
    "machine.available_memory_proportion": "setAvailableMemoryProportion",
    "machine.buffering_depth": "_Popart.set: defaultBufferingDepth",
    "machine.has_half_convolutions": "_Popart.set: convolutionOptions, half partials",
    "machine.has_half_products": "Precision.setPartialsType: half partials",
    "machine.is_outlined": "_Popart.set: enableOutlining",
    "machine.is_prefetched": "_Popart.set: enablePrefetchDatastreams",
    "machine.num_io_tiles": "TensorLocations.numIOTiles",
    "machine.outline_threshold": "_Popart.set: outlineThreshold",
    "machine.updates_in_turn": "_Popart.set: accumulateOuterFragmentSettings.schedule",
    "max_guarded_programs": "emulator.set_value_guards: max_programs",
    "max_repeat_logs": "maxRepeatLogs",
    "model_name": "modelName",
    "names_modules": "disableModuleNamescope: modules are named",
    "num_processes": "Distributed.configureProcessId: num_processes",
    "output_mode": "outputMode: output_mode",
    "output_return_period": "outputMode: output_return_period",
    "process_id": "Distributed.configureProcessId: process_id",
    "profile_dir": "enableProfiling",
    "random_seed": "randomSeed",
    "recomputation": "_Popart.set: autoRecomputation",
    "reduction_type": "Training.accumulationAndReplicationReductionType",
    "replication_factor": "replicationFactor",
    "rounds_stochastically": "Precision.enableStochasticRounding",
    "sharding.accumulator": "TensorLocations.setAccumulatorLocation: sharded from",
    "sharding.activation": "TensorLocations.setActivationLocation: sharded from",
    "sharding.optimizer": "TensorLocations.setOptimizerLocation: sharded from",
    "sharding.weight": "TensorLocations.setWeightLocation: sharded from",
    "shows_progress_bar": "showCompilationProgressBar",
    "strategy.order": "emulator.set_schedule: order",
    "strategy.table": "emulator.set_schedule: table",
    "strategy": "setExecutionStrategy",
    "synthetic_data": "enableSyntheticData",
    "target": "useIpuModel, useOfflineIpuTarget",
    "updatable_buffers": "updatableNamedBuffers",
    "weight_groups": "replicaGrouping",
}


def option_rows(config: CompileConfig) -> list[list[str | None]]:
    """Returns [name, value, default] of each setting.

    The name is that of the setter, with a detail after a colon. Fields without a setter have the
    name of the field, and no default.
    """
    default = CompileConfig(
        is_training=config.is_training,
        output_mode=OutputMode.Final if config.is_training else OutputMode.All,
    )
    return sorted(_rows_of(config, default, ""), key=lambda row: str(row[0]).lower())


def _rows_of(value: Any, default: Any, prefix: str) -> Iterator[list[str | None]]:
    for field in fields(value):
        item, path = getattr(value, field.name), f"{prefix}{field.name}"
        usual = _usual(field, default)
        if is_dataclass(item) and not isinstance(item, type):
            yield from _rows_of(item, usual, f"{path}.")
        else:
            name = _setter(path)
            yield [name or path, _text(item), _text(usual) if name else None]


def _usual(field: Field[Any], default: Any) -> Any:
    """Returns the field's value in `default`; without a `default` the field's own default."""
    if default is not None:
        return getattr(default, field.name)
    return None if field.default is MISSING else field.default


def _setter(path: str) -> str | None:
    """Returns the setter of a field, or of the group that contains it."""
    if path in SETTERS:
        return SETTERS[path]
    group, _, name = path.rpartition(".")
    setter = _setter(group) if group else None
    return f"{setter}{', ' if ': ' in setter else ': '}{name}" if setter else None


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{len(value)} entries" if value else "none"
    if isinstance(value, tuple):
        return ", ".join(map(_text, value)) or "none"
    if is_dataclass(value) and not isinstance(value, type):
        return _text(getattr(value, fields(value)[0].name))  # The first field names the value.
    if value is None:
        return "not set"
    return value.name if isinstance(value, Enum) else str(value)
