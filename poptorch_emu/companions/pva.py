"""`pva`: reads the reports of programs, as the analyser's library did.

The model of the machine knows the mean and the maximum of the bytes on the tiles of an IPU, the
bytes of an IPU at each of its operations, the tensors on tiles, and the times of an IPU's steps.
Variables are the model's memory categories, compute sets are its operations, and all tiles that
compute do the same work. Lowered variables, edges and code of single tiles have no model, so
reading them raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from poptorch_emu.companions.nested_events import Event, nested
from poptorch_emu.companions.report_execution import execution_of
from poptorch_emu.companions.report_memory import (
    Compilation,
    Tiles,
    always_live_variables,
    are_known,
    liveness_steps,
)
from poptorch_emu.companions.report_programs import Program, ProgramVisitor, program_of
from poptorch_emu.companions.report_sections import NotInReport, Section, used_tiles
from poptorch_emu.report.page.view_options import SETTERS
from poptorch_emu.report.profile_file import SCHEMA_VERSION
from poptorch_emu.report.profile_reader import read_calls, read_profile_file, read_run
from poptorch_emu.report.report_check import refuses_damage
from poptorch_emu.report.trace_operations import rows_of

__all__ = [
    "IPU",
    "Event",
    "NotInReport",
    "OperationAnalysis",
    "Program",
    "ProgramVisitor",
    "Section",
    "Target",
    "openReport",
    "openTrace",
]


class IPU:
    """Names of the kinds of IPUs (modelled)."""

    class Architecture(Enum):
        """Generations of chips (modelled); Mk2 and Bow belong to the second."""

        Ipu1 = "Ipu1"
        Ipu2 = "Ipu2"


class Target:
    """Names of the kinds of devices (exact)."""

    class Type(Enum):
        """Devices that a program is compiled for (exact); the virtual system counts as IPUs."""

        Ipu = "Ipu"
        IpuModel = "IpuModel"
        Cpu = "Cpu"
        Unknown = "Unknown"


_ARCHITECTURES = {"Mk1": IPU.Architecture.Ipu1, "Mk2": IPU.Architecture.Ipu2}
_ARCHITECTURES["Bow"] = IPU.Architecture.Ipu2
_TYPES = {"HARDWARE": Target.Type.Ipu, "OFFLINE": Target.Type.Ipu}
_TYPES["IPU_MODEL"] = Target.Type.IpuModel


class OperationAnalysis:
    """Links between the operations of a report and lines of a program (refused)."""

    def __init__(self, report: Section) -> None:
        """Raises, because a report here has no debug contexts of Poplar.

        Raises:
            NotInReport: always.
        """
        raise NotInReport(
            "OperationAnalysis needs debug contexts of Poplar, which no report has here. "
            "emulator.read_report(path) has each operation with its line of the program."
        )


def openReport(path: str | Path, debug_cbor: str | Path | None = None) -> Section:
    """Returns the report of a `profile.pop` that `emulator.report` wrote (modelled).

    `compilation.target` holds `numIPUs`, `numTiles`, `tilesPerIpu`, `bytesPerTile`, `bytesPerIPU`,
    `totalMemory`, `clockFrequency` (Hz), `numReplicas`, `ipusPerReplica`, `tilesPerReplica`,
    `memoryPerReplica`, `architecture` and `type`. `compilation.graph.numComputeSets` counts the
    operations that compute; `compilation.programs` is one sequence of them.
    `compilation.livenessProgramSteps` are the operations of each IPU in turn. Each step holds
    `program.name`, `notAlwaysLiveMemoryForIpu(ipu)`, `notAlwaysLiveMemoryForTile(tile)`, which is
    that of the mean tile, and `notAlwaysLiveMemory` of all IPUs, when all IPUs of the
    window together hold the most. Each of the three has `bytes` and `variables`, which are named
    after the tensors at the peak of an IPU. Bytes are means of the tiles times their number.
    `compilation.alwaysLiveVariables` and `alwaysLiveVariablesForTile(tile)` have `name` and `size`
    of each category: data such as weights, and code.
    `compilation.tiles[t].memory` and `compilation.ipus[i].tiles[t].memory` hold values at the peak:
    `total` and `overflowed`, the bytes above the limit, each as `excludingGaps` and
    `includingGaps`, which are equal; `alwaysLiveBytes`, `notAlwaysLiveBytes` and
    `category.<name>.total` of `variable`, `constant`, `vertexCode`, `vertexInstanceState`,
    `internalExchangeCode`, `controlCode` and `stack`. The totals of `hostExchangeCode`,
    `vectorListDescriptor` and `vertexFieldData`, which have no model, are 0.
    `execution.totalCycles.total` are the cycles of a call. `execution.steps` are the steps of the
    IPUs in one window: `program` (`name`, `type`, `computeset.vertices`), `cyclesByTile`,
    `computeSets` and, for each IPU `i` of the target, `ipus[i].cycles`, `.activeCycles.cyclesFrom`
    and `.cyclesTo`, each with `min` and `max`, `.activeTileBalance` and `.tileBalance`.
    `execution.runs` are the calls that ran here while profiling: `name`, `microseconds.start` and
    `.end`, counted from the first call on (exact), and the `steps` of a window. `version` is the
    version of the file.

    Args:
        path: path of the file.
        debug_cbor: accepted without effect, because the report itself holds the names.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a `profile.pop`, is damaged, or has another version.
    """
    with refuses_damage(Path(path)):
        return _report(Path(path), read_profile_file(Path(path)))


def _report(path: Path, view: Mapping[str, Any]) -> Section:
    version = {"major": SCHEMA_VERSION, "minor": 0, "point": 0, "isUnstableFormat": False}
    poplar = {"string": dict(view["versions"]).get("poptorch_emu")}
    return Section(
        "report",
        {
            "compilation": _compilation(view),
            "execution": execution_of(path, view),
            "poplarVersion": Section("report.poplarVersion", poplar),
            "version": Section("report.version", version),
        },
    )


def _compilation(view: Mapping[str, Any]) -> Compilation:
    memories = view["memory"]["ipus"]
    tiles = Tiles("report.compilation.tiles", memories) if are_known(memories) else None
    programs = list(_programs(view))
    graph = {"numComputeSets": len(programs) or None}
    whole = {"name": "window", "type": Program.Type.Sequence, "children": programs}
    return Compilation(
        "report.compilation",
        {
            "target": _target(view),
            "graph": Section("report.compilation.graph", graph),
            "ipus": _ipus(memories, len(view["ipus"])) or None,
            "tiles": tiles,
            "livenessProgramSteps": list(liveness_steps(view)) or None,
            "alwaysLiveVariables": always_live_variables(memories),
            "programs": [Program("report.compilation.programs[0]", whole)] if programs else None,
            "memories": memories,
        },
    )


def _programs(view: Mapping[str, Any]) -> Iterator[Program]:
    """Yields a program for each operation that takes time; views, for example, take none."""
    positions = {each["ipu"]: number for number, each in enumerate(view["ipus"])}
    computing = (row for row in rows_of(view["operations"]) if row["cycles"])
    for number, row in enumerate(computing):
        path = f"report.compilation.programs[0].children[{number}]"
        tiles = used_tiles(view["machine"], positions.get(row["ipu"], 0))
        yield program_of(path, row["name"], "", [row], tiles, id=number, children=[])


def _target(view: Mapping[str, Any]) -> Section:
    machine = view["machine"]
    ipus, tiles, num_bytes = machine["num_ipus"], machine["num_tiles"], machine["tile_bytes"]
    replicas = machine["num_replicas"]
    kind = next((value for name, value, _ in view["options"] if name == SETTERS["target"]), "")
    values = {
        "numReplicas": replicas,
        "clockFrequency": machine["clock_hz"],
        "architecture": _ARCHITECTURES.get(machine["chip"]),
        "type": _TYPES.get(kind, Target.Type.Unknown),
        "ipusPerReplica": ipus,
    }
    if None not in (ipus, tiles, num_bytes):
        values |= {
            "numIPUs": replicas * ipus,
            "numTiles": replicas * ipus * tiles,
            "tilesPerIpu": tiles,
            "tilesPerReplica": ipus * tiles,
            "bytesPerTile": num_bytes,
            "bytesPerIPU": tiles * num_bytes,
            "memoryPerReplica": ipus * tiles * num_bytes,
            "totalMemory": replicas * ipus * tiles * num_bytes,
        }
    return Section("report.compilation.target", values)


def _ipus(memories: list[Mapping[str, Any]], num_ipus: int) -> list[Section]:
    path = "report.compilation.ipus"
    held = [memories[number : number + 1] for number in range(num_ipus)]
    return [
        Section(
            f"{path}[{number}]",
            {"tiles": Tiles(f"{path}[{number}].tiles", own) if are_known(own) else None},
        )
        for number, own in enumerate(held)
    ]


def openTrace(path: str | Path) -> Section:
    """Returns the events of the host in a `profile.pop` that profiling wrote (exact).

    `processes[0]` has the `pid` of the process that wrote the report. Its `threads` are the calls,
    as the thread "calls", and each channel of `libpvti` or `poptorch.profiling`. A thread has
    `name`, `events` and `tid`, a number that counts from 1.

    Args:
        path: path of the file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a `profile.pop`, is damaged, or has another version.
    """
    with refuses_damage(Path(path)):
        # `read_profile_file` raises an error that describes the damage of a file.
        return _trace(Path(path), read_profile_file(Path(path)).get("process_id"))


def _trace(path: Path, process_id: Any) -> Section:
    spans: dict[str, list[tuple[str, int, int]]] = {}
    for number, start_ns, end_ns in read_calls(path):
        spans.setdefault("calls", []).append((f"call {number}", start_ns, end_ns))
    for channel, name, start_ns, end_ns in read_run(path).tracepoints:
        spans.setdefault(channel, []).append((name, start_ns, end_ns))
    first_ns = min((span[1] for found in spans.values() for span in found), default=0)
    threads = [
        Section(
            f"trace.processes[0].threads[{n}]",
            {"name": name, "tid": n + 1, "events": nested(found, first_ns)},
        )
        for n, (name, found) in enumerate(spans.items())
    ]
    pid = process_id if isinstance(process_id, int) else None
    values = {"name": "poptorch_emu", "pid": pid, "threads": threads}
    process = Section("trace.processes[0]", values)
    return Section("trace", {"processes": [process]})
