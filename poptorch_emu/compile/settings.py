"""Settings that distinguish plans, and the change of the configuration for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from poptorch_emu.config import (
    CompileConfig,
    LocationConfig,
    MachineConfig,
    PipelineOrder,
    Recomputation,
    ShardingConfig,
    StrategyKind,
    TableConfig,
    TensorLocation,
)
from poptorch_emu.enums import OutputMode
from poptorch_emu.errors import make_error
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.schedule.tables.named import TABLES, named_table
from poptorch_emu.segments.recomputation import recomputation_of

# Kinds of tensors that may be in streaming memory.
OFFLOADED = ("activation", "weight", "optimizer", "accumulator")
# Source: PopART's default for `minElementsForReplicatedTensorSharding`.
_MIN_ELEMENTS_FOR_SHARDING = 8192
_ORDERS = tuple(order.value for order in PipelineOrder)
# Names of all pipeline schedules.
SCHEDULES = (*_ORDERS, *TABLES)
# Number of tiles for overlapped input and output.
NUM_IO_TILES = 32


def changed(
    config: CompileConfig, settings: Mapping[str, Any], ipu_ids: Sequence[int]
) -> CompileConfig:
    """Returns a configuration with some settings changed.

    Args:
        config: configuration of the model.
        settings: values, by the names in `SETTINGS`.
        ipu_ids: the user's numbers of the IPUs of a replica.

    Raises:
        Error: a value is not valid for its setting.
    """
    for name, value in settings.items():
        check_name(name, value)
        config = replace(config, **_CHANGES[name](config, value, ipu_ids))
    return config


def own_settings(inventory: Inventory) -> dict[str, Any]:
    """Returns the settings of a model; None for a value that sweeps cannot set."""
    config, placed = inventory.config, inventory.placed
    strategy, table = config.strategy, config.strategy.table
    remote = [kind for kind in OFFLOADED if getattr(config.locations, kind).is_on_chip is False]
    schedule: str | TableConfig = strategy.order.value
    if table is not None:
        schedule = table.name if table == _named(table.name) else table
    return {
        "micro_batch": inventory.rows,
        "accumulation": config.gradient_accumulation,
        "num_ipus": len(placed.ipu_ids),
        "schedule": schedule if strategy.kind is StrategyKind.PIPELINED else strategy.kind.value,
        "recomputation": recomputation_of(config, placed).name.lower(),
        "offload": "+".join(remote) or "nothing",
        "replicas": config.replication_factor,
        "device_iterations": config.device_iterations,
        "output_mode": config.output_mode.name,
    }


def _named(name: str) -> TableConfig | None:
    return named_table(name) if name in TABLES else None


def joined(choices: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns the union of several choices, or None if two of them conflict."""
    found: dict[str, Any] = {}
    for name, value in (pair for choice in choices for pair in choice.items()):
        if name in found and name not in _SEVERAL:
            return None
        found[name] = f"{found[name]}+{value}" if name in found else value
    return found


def check_name(setting: str, value: Any) -> None:
    """Checks the value of a setting that accepts names only.

    Raises:
        Error: the setting has no such name.
    """
    names = _NAMES.get(setting)
    if names is None or isinstance(value, TableConfig):
        return
    for name in str(value).split("+") if setting in _SEVERAL else (value,):
        if name not in names:
            raise make_error(
                f"There is no {setting.replace('_', ' ')} {name!r}. Choose one of "
                f"{', '.join(names)}.{did_you_mean(str(name), names)}"
            )


_Change = Callable[[CompileConfig, Any, Sequence[int]], dict[str, Any]]


def _field(name: str) -> _Change:
    return lambda config, value, ipu_ids: {name: value}


def _nothing(config: CompileConfig, value: Any, ipu_ids: Sequence[int]) -> dict[str, Any]:
    return {}


def _recomputation(config: CompileConfig, value: Any, ipu_ids: Sequence[int]) -> dict[str, Any]:
    return {"recomputation": Recomputation[value.upper()]}


def _proportion(config: CompileConfig, value: Any, ipu_ids: Sequence[int]) -> dict[str, Any]:
    proportions = tuple((ipu, value) for ipu in ipu_ids)
    machine: MachineConfig = replace(config.machine, available_memory_proportion=proportions)
    return {"machine": machine}


def _offload(config: CompileConfig, value: Any, ipu_ids: Sequence[int]) -> dict[str, Any]:
    kinds = [kind for kind in value.split("+") if kind != "nothing"]
    moved = {kind: TensorLocation(is_on_chip=not kinds) for kind in kinds or OFFLOADED}
    locations: LocationConfig = replace(config.locations, **moved)
    return {"locations": locations}


def _sharding(config: CompileConfig, value: Any, ipu_ids: Sequence[int]) -> dict[str, Any]:
    return {"sharding": ShardingConfig(optimizer=_MIN_ELEMENTS_FOR_SHARDING if value else None)}


def _output_mode(config: CompileConfig, value: Any, ipu_ids: Sequence[int]) -> dict[str, Any]:
    return {"output_mode": OutputMode[value]}


def _overlap(config: CompileConfig, value: Any, ipu_ids: Sequence[int]) -> dict[str, Any]:
    if value == "nothing":
        return {}
    if len(ipu_ids) > 1:
        raise make_error(
            "Input and output can overlap with computation only if the model runs on one IPU, but "
            f"it runs on {len(ipu_ids)}."
        )
    tiles = max(NUM_IO_TILES, config.machine.num_io_tiles)
    machine: MachineConfig = replace(config.machine, num_io_tiles=tiles)
    return {"machine": machine, "strategy": replace(config.strategy, kind=StrategyKind.SHARDED)}


def _schedule(config: CompileConfig, value: Any, ipu_ids: Sequence[int]) -> dict[str, Any]:
    strategy = replace(config.strategy, kind=StrategyKind.PIPELINED, table=None)
    if value in _ORDERS:
        return {"strategy": replace(strategy, order=PipelineOrder(value))}
    table = value if isinstance(value, TableConfig) else named_table(value)
    # Converts the user's own subclass, because its values never equal those of the options.
    table = TableConfig(table.name, table.stages_per_ipu, table.rows)
    return {"strategy": replace(strategy, table=table)}


_CHANGES: Mapping[str, _Change] = {
    "accumulation": _field("gradient_accumulation"),
    "replicas": _field("replication_factor"),
    "micro_batch": _nothing,
    "proportion": _proportion,
    "recomputation": _recomputation,
    "system": _nothing,
    "num_ipus": _nothing,
    "split": _nothing,
    "stages": _nothing,
    "schedule": _schedule,
    "offload": _offload,
    "sharding": _sharding,
    "device_iterations": _field("device_iterations"),
    "output_mode": _output_mode,
    "overlap": _overlap,
}
SETTINGS = tuple(_CHANGES)
# Settings that accept several names joined by +.
_SEVERAL = ("offload", "overlap")
_NAMES: Mapping[str, Sequence[str]] = {
    "recomputation": [mode.name.lower() for mode in Recomputation],
    "schedule": SCHEDULES,
    "offload": ["nothing", *OFFLOADED],
    "overlap": ["nothing", "inputs", "results"],
    "output_mode": [mode.name for mode in OutputMode],
}
