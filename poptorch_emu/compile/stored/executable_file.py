"""Converts an executable to sections of a file, and back.

The sections are JSON and the program's own format, which execute nothing when they are read. They
hold no user objects, such as the structure of the outputs and the weights, because these come from
recording `forward` again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch

from poptorch_emu import _C
from poptorch_emu.compile.executable import Executable, PlacedGraph
from poptorch_emu.compile.stored.key import Key
from poptorch_emu.compile.stored.plan_check import check_agreement, check_types
from poptorch_emu.config import CompileConfig
from poptorch_emu.enums import OverlapMode
from poptorch_emu.errors import Error, make_error
from poptorch_emu.ir.record import BlockPlace
from poptorch_emu.ir.stored import restore, store
from poptorch_emu.machine.costs.code import CodeBytes
from poptorch_emu.machine.ipu import IPU_OF_VERSION
from poptorch_emu.machine.tile_memory import IpuMemory, Peak, TileMemory
from poptorch_emu.plan.memory.memory_plan import Content, Holding, MemoryPlan, Movement, Store
from poptorch_emu.schedule.actions import Kind, parse_action
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.transfers import Transfer
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.trace.capture.tracer import Forward
from poptorch_emu.troubleshooting import Topic

_KEY, _PROGRAM, _PLAN, _GRAPH = "key", "program", "plan", "graph"


def to_sections(executable: Executable) -> dict[str, bytes]:
    """Returns the sections of a file for `executable`.

    Raises:
        Error: an argument of the program cannot be stored.
    """
    return {
        _KEY: executable.key.text.encode(),
        _PROGRAM: executable.program.serialize(),
        _PLAN: json.dumps(_stored_plan(executable)).encode(),
        _GRAPH: json.dumps(_stored_graph(executable)).encode(),
    }


def stored_key(sections: Mapping[str, bytes]) -> Key:
    """Returns the key of the program in a file.

    Raises:
        Error: the key is damaged.
    """
    with _refuses_damage():
        return Key.from_json(sections[_KEY])


def is_of_key(sections: Mapping[str, bytes], key: Key) -> bool:
    """Returns whether the program in a file has this key."""
    return sections.get(_KEY) == key.text.encode()


def from_sections(
    sections: Mapping[str, bytes], key: Key, config: CompileConfig, forward: Forward
) -> Executable:
    """Returns the executable in a file.

    Args:
        sections: sections of a file whose program fits `forward`.
        key: key in the file.
        config: current configuration; it may differ in options that do not affect the program.
        forward: recorded `forward` of the model.

    Raises:
        Error: the program or its plan is damaged.
    """
    with _refuses_damage():
        executable = _executable(sections, key, config, forward)
        check_agreement(executable, forward)
        return executable


@contextmanager
def _refuses_damage() -> Iterator[None]:
    """Converts any exception about a section with a valid digest to an `Error`."""
    try:
        yield
    except Error:
        raise
    except Exception as cause:
        raise make_error(
            "Invalid executable: its sections are whole, but not what this package writes "
            f"({type(cause).__name__}: {cause}). Compile the model again; {Topic.INVALID_FILE}"
        ) from cause


def _executable(
    sections: Mapping[str, bytes], key: Key, config: CompileConfig, forward: Forward
) -> Executable:
    plan = json.loads(sections[_PLAN])
    check_types(plan)
    graph = sections[_GRAPH]
    return Executable(
        program=_C.Program.deserialize(sections[_PROGRAM]),
        config=config,
        key=key,
        look_up=lambda: _looked_up(graph),
        schedule=_schedule(plan["schedule"]),
        outputs=forward.outputs,
        num_outputs=plan["num_outputs"],
        host_outputs=forward.host_outputs,
        written_inputs=tuple(plan["written_inputs"]),
        variables={entry["name"]: _variable(entry) for entry in plan["variables"]},
        scalars={(name, group): index for name, group, index in plan["scalars"]},
        segment_names=tuple(plan["segment_names"]),
        ipus_per_replica=plan["ipus_per_replica"],
        is_random=plan["is_random"],
        anchors=tuple(plan["anchors"]),
        tensor_names=tuple(plan["tensor_names"]),
        batch_counts=forward.batch_counts,
        guards=forward.guards,
        scaling_limits=forward.scaling_limits,
        shortages=tuple(plan["shortages"]),
    )


def _stored_plan(executable: Executable) -> dict[str, Any]:
    schedule = executable.schedule
    return {
        "schedule": {
            "ipu_of_stage": schedule.ipu_of_stage,
            "num_micro_batches": schedule.num_micro_batches,
            "is_training": schedule.is_training,
            "level_of_stage": schedule.level_of_stage,
            "rows": [[[str(action) for action in cell] for cell in row] for row in schedule.rows],
        },
        "num_outputs": executable.num_outputs,
        "written_inputs": executable.written_inputs,
        "variables": [
            {**asdict(variable), "dtype": str(variable.dtype).removeprefix("torch.")}
            for variable in executable.variables.values()
        ],
        "scalars": [[*key, index] for key, index in executable.scalars.items()],
        "segment_names": executable.segment_names,
        "ipus_per_replica": executable.ipus_per_replica,
        "is_random": executable.is_random,
        "anchors": executable.anchors,
        "tensor_names": executable.tensor_names,
        "shortages": executable.shortages,
    }


def _stored_holding(holding: Holding) -> dict[str, Any]:
    return {
        **asdict(holding),
        "content": holding.content.value,
        "store": holding.store.value,
    }


def _memory(stored: dict[str, Any]) -> MemoryPlan:
    holdings = (
        Holding(**{**entry, "content": Content(entry["content"]), "store": Store(entry["store"])})
        for entry in stored["holdings"]
    )
    movements = (Movement(**entry) for entry in stored["movements"])
    return MemoryPlan(tuple(stored["ipu_ids"]), tuple(holdings), tuple(movements))


def _schedule(stored: dict[str, Any]) -> Schedule:
    rows = tuple(
        tuple(tuple(parse_action(action) for action in cell) for cell in row)
        for row in stored["rows"]
    )
    return Schedule(
        **{
            **stored,
            "ipu_of_stage": tuple(stored["ipu_of_stage"]),
            "level_of_stage": tuple(stored["level_of_stage"]),
            "rows": rows,
        }
    )


def _variable(stored: dict[str, Any]) -> VariableInfo:
    return VariableInfo(
        **{
            **stored,
            "shape": tuple(stored["shape"]),
            "dtype": getattr(torch, stored["dtype"]),
            "group_of_replica": tuple(stored["group_of_replica"]),
        }
    )


def _stored_graph(executable: Executable) -> dict[str, Any]:
    partition, memory = executable.partition, executable.memory
    return {
        "graph": store(executable.graph),
        "ipu_ids": partition.ipu_ids,
        "ipu_of_stage": partition.ipu_of_stage,
        "places": [asdict(place) for place in partition.places],
        "ports": [
            [node.name, kind.value, stage] for node, (kind, stage) in partition.port_of.items()
        ],
        "memory": {
            "ipu_ids": memory.ipu_ids,
            "holdings": [_stored_holding(holding) for holding in memory.holdings],
            "movements": [asdict(movement) for movement in memory.movements],
        },
        "transfers": [
            {**asdict(transfer), "mode": transfer.mode.value} for transfer in executable.transfers
        ],
        "tiles": _stored_tiles(executable.tiles),
    }


def _looked_up(graph: bytes) -> PlacedGraph:
    with _refuses_damage():
        return _graph(json.loads(graph))


def _graph(stored: dict[str, Any]) -> PlacedGraph:
    graph, nodes = restore(stored["graph"])
    return PlacedGraph(
        graph,
        Partition(
            tuple(stored["ipu_ids"]),
            tuple(stored["ipu_of_stage"]),
            tuple(BlockPlace(**place) for place in stored["places"]),
            {nodes[name]: (Kind(kind), stage) for name, kind, stage in stored["ports"]},
        ),
        _memory(stored["memory"]),
        tuple(
            Transfer(**{**entry, "mode": OverlapMode(entry["mode"])})
            for entry in stored["transfers"]
        ),
        _tiles(stored["tiles"]),
    )


def _stored_tiles(tiles: TileMemory) -> dict[str, Any]:
    return {**asdict(tiles), "chip": tiles.chip.name}


def _tiles(stored: dict[str, Any]) -> TileMemory:
    (chip,) = (ipu for ipu in IPU_OF_VERSION.values() if ipu.name == stored["chip"])
    return TileMemory(
        chip, stored["num_io_tiles"], tuple(_ipu_memory(entry) for entry in stored["ipus"])
    )


def _ipu_memory(stored: dict[str, Any]) -> IpuMemory:
    peak = {**stored["peak"], "largest": tuple(map(tuple, stored["peak"]["largest"]))}
    return IpuMemory(
        **{
            **stored,
            "always_live": tuple(map(tuple, stored["always_live"])),
            "peak": Peak(**peak),
            "code": CodeBytes(**stored["code"]),
        }
    )
