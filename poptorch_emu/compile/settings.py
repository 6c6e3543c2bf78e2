"""The settings that plans are compared by: from a name and a value to a configuration."""

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
    TensorLocation,
)
from poptorch_emu.enums import OutputMode
from poptorch_emu.errors import make_error
from poptorch_emu.near_names import did_you_mean

# Kinds of tensors that may be in streaming memory.
_KINDS = ("activation", "weight", "optimizer", "accumulator")
# Source: PopART's default for `minElementsForReplicatedTensorSharding`.
_MIN_ELEMENTS_FOR_SHARDING = 8192
# Tiles that overlapped input and output have of their own.
NUM_IO_TILES = 32


def changed(
    config: CompileConfig, settings: Mapping[str, Any], ipu_ids: Sequence[int]
) -> CompileConfig:
    """Returns a configuration with some settings changed.

    Args:
        config: of the model.
        settings: values by the names of `SETTINGS`.
        ipu_ids: the IPUs of a replica.

    Raises:
        Error: a value means nothing.
    """
    for name, value in settings.items():
        check_name(name, value)
        config = replace(config, **_CHANGES[name](config, value, ipu_ids))
    return config


def joined(choices: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns several choices as one; `None` if two of them want different values of a setting."""
    found: dict[str, Any] = {}
    for name, value in (pair for choice in choices for pair in choice.items()):
        if name in found and name not in _SEVERAL:
            return None
        found[name] = f"{found[name]}+{value}" if name in found else value
    return found


def check_name(setting: str, value: Any) -> None:
    """Checks the value of a setting whose values are names.

    Raises:
        Error: there is no such name.
    """
    names = _NAMES.get(setting)
    if names is None:
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
    moved = {kind: TensorLocation(is_on_chip=not kinds) for kind in kinds or _KINDS}
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
        raise make_error("Overlapped input and output are for models of one IPU here.")
    tiles = max(NUM_IO_TILES, config.machine.num_io_tiles)
    machine: MachineConfig = replace(config.machine, num_io_tiles=tiles)
    return {"machine": machine, "strategy": replace(config.strategy, kind=StrategyKind.SHARDED)}


def _schedule(config: CompileConfig, value: Any, ipu_ids: Sequence[int]) -> dict[str, Any]:
    order, kind = PipelineOrder(value), StrategyKind.PIPELINED
    return {"strategy": replace(config.strategy, kind=kind, order=order, table=None)}


_CHANGES: Mapping[str, _Change] = {
    "accumulation": _field("gradient_accumulation"),
    "replicas": _field("replication_factor"),
    "micro_batch": _nothing,
    "proportion": _proportion,
    "recomputation": _recomputation,
    "system": _nothing,
    "num_ipus": _nothing,
    "schedule": _schedule,
    "offload": _offload,
    "sharding": _sharding,
    "device_iterations": _field("device_iterations"),
    "output_mode": _output_mode,
    "overlap": _overlap,
}
SETTINGS = tuple(_CHANGES)
# Those whose values may be several names with + between them.
_SEVERAL = ("offload", "overlap")
_NAMES: Mapping[str, Sequence[str]] = {
    "recomputation": [mode.name.lower() for mode in Recomputation],
    "schedule": [order.value for order in PipelineOrder],
    "offload": ["nothing", *_KINDS],
    "overlap": ["nothing", "inputs", "results"],
    "output_mode": [mode.name for mode in OutputMode],
}
