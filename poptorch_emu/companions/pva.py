"""`pva`: reads the reports of programs, as the analyser's library did.

The model of the machine tells what the tiles of an IPU hold on average and at most, what an IPU
holds at each of its operations, how tensors lie on tiles, and when an IPU does what; of variables
of a tile, compute sets and programs of Poplar it knows nothing. Asking for those raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, overload

from poptorch_emu.companions.bytes_of_tiles import bytes_of_categories, bytes_of_tiles
from poptorch_emu.companions.fullest_moments import fullest_moments
from poptorch_emu.companions.nested_events import Event, nested
from poptorch_emu.report.profile_reader import read_calls, read_profile_file, read_run
from poptorch_emu.report.report_check import refuses_damage

__all__ = [
    "IPU",
    "Event",
    "NotInReport",
    "Program",
    "ProgramVisitor",
    "Section",
    "openReport",
    "openTrace",
]

_NS_PER_US = 1000.0
_ADVICE = (
    "poptorch_emu knows no variables of a tile and no programs of Poplar; look at "
    "emulator.tile_memory(model) and emulator.estimate(model)."
)


class NotInReport(AttributeError, RuntimeError):
    """A report does not hold what was asked for; programs catch either of its bases (exact)."""


class IPU:
    """Names of the kinds of IPUs (modelled)."""

    class Architecture(Enum):
        """The generation of a chip (modelled): Mk2 and Bow are of the second."""

        Ipu1 = "Ipu1"
        Ipu2 = "Ipu2"


_ARCHITECTURES = {"Mk1": IPU.Architecture.Ipu1, "Mk2": IPU.Architecture.Ipu2}
_ARCHITECTURES["Bow"] = IPU.Architecture.Ipu2


class Section:
    """A part of a report, whose values are its attributes; what is not held raises (modelled)."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self._path = path
        self._values = {name: value for name, value in values.items() if value is not None}

    def __getattr__(self, name: str) -> Any:
        """Returns a value of the report.

        Raises:
            NotInReport: the report does not hold it.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise NotInReport(
                f"{self._path}.{name} is not in this report, which holds "
                f"{', '.join(self._values) or 'nothing'} there. {_ADVICE}"
            ) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]


class Program(Section):
    """What runs in a step (modelled): here a stage of the pipeline, a copy or an update."""

    class Type(Enum):
        """Kinds of programs; reports have the first five."""

        OnTileExecute = "OnTileExecute"
        DoExchange = "DoExchange"
        GlobalExchange = "GlobalExchange"
        StreamCopyMid = "StreamCopyMid"
        StreamCopyMidRemoteBuffer = "StreamCopyMidRemoteBuffer"
        StreamCopyBegin = "StreamCopyBegin"
        StreamCopyEnd = "StreamCopyEnd"
        Sync = "Sync"
        SyncAns = "SyncAns"
        Sans = "Sans"
        Sequence = "Sequence"
        Repeat = "Repeat"
        RepeatWhile = "RepeatWhile"
        Call = "Call"
        If = "If"
        Switch = "Switch"
        WriteUndef = "WriteUndef"

    def accept(self, visitor: ProgramVisitor) -> Any:
        """Calls the method of `visitor` for programs of this type, such as `visitOnTileExecute`."""
        return getattr(visitor, f"visit{self.type.name}")(self)


class ProgramVisitor:
    """Base class of what looks at programs; its methods do nothing (exact)."""

    def __getattr__(self, name: str) -> Callable[[Program], None]:
        """Returns a method that does nothing, for each type of program.

        Raises:
            AttributeError: there is no such type.
        """
        if name.removeprefix("visit") not in Program.Type.__members__:
            raise AttributeError(
                f"A ProgramVisitor has no {name!r}: there is no such Program.Type."
            )
        return lambda program: None


# The type of program that does each kind of work.
_TYPE_OF_KIND = {
    "link": Program.Type.GlobalExchange,
    "exchange": Program.Type.DoExchange,
    "all-reduce": Program.Type.GlobalExchange,
    "streaming": Program.Type.StreamCopyMidRemoteBuffer,
    "host": Program.Type.StreamCopyMid,
}


def openReport(path: str | Path, debug_cbor: str | Path | None = None) -> Section:
    """Returns the report of a `profile.pop` that `emulator.report` wrote (modelled).

    `compilation.target` tells `numIPUs`, `numTiles`, `tilesPerIpu`, `bytesPerTile`, `bytesPerIPU`,
    `totalMemory`, `clockFrequency` (Hz), `numReplicas` and `architecture`.
    `compilation.livenessProgramSteps` are the operations of each IPU in turn: `program.name`,
    `notAlwaysLiveMemoryForIpu(ipu)` and, of all IPUs, `notAlwaysLiveMemory.bytes`, at the moment of
    the window at which all hold the most; bytes are means of the tiles times their number.
    `compilation.tiles[t].memory`, and that of `compilation.ipus[i].tiles[t]`, has at the peak
    `total.excludingGaps`, `alwaysLiveBytes`, `notAlwaysLiveBytes` and `category.<name>.total` of
    `variable`, `constant`, `vertexCode`, `vertexInstanceState`, `internalExchangeCode`,
    `controlCode` and `stack`.
    `execution.totalCycles.total` are the cycles of a call, `execution.steps` what IPUs do in one
    window: `program` (`name`, `type`), `ipus[i].cycles` and
    `ipus[i].activeCycles.cyclesFrom.max` and `.cyclesTo.max`, where `i` counts the IPUs that the
    model uses. `execution.runs` are the calls that ran here while profiling: `name` and
    `microseconds.start` and `.end`, from the first one on (exact).

    Args:
        path: of the file.
        debug_cbor: has no effect, since names stand in the report.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, is damaged, or is of another version.
    """
    with refuses_damage(Path(path)):
        return _report(Path(path), read_profile_file(Path(path)))


def _report(path: Path, view: Mapping[str, Any]) -> Section:
    seconds, clock_hz = view["speed"]["predicted_step_seconds"], view["machine"]["clock_hz"]
    cycles = None if seconds is None or clock_hz is None else round(seconds * clock_hz)
    execution = {
        "totalCycles": _section("execution.totalCycles", total=cycles),
        "steps": list(_execution_steps(view)) or None,
        "runs": list(_runs(path)) or None,
    }
    compilation = {
        "target": _target(view["machine"]),
        "graph": _section("compilation.graph"),
        "ipus": _ipus(view["memory"]["ipus"], len(view["ipus"])) or None,
        "tiles": _all_tiles(view["memory"]["ipus"]),
        "livenessProgramSteps": list(_liveness_steps(view)) or None,
    }
    return _section(
        "",
        compilation=Section("report.compilation", compilation),
        execution=Section("report.execution", execution),
        poplarVersion=_section("poplarVersion", string=dict(view["versions"]).get("poptorch_emu")),
    )


def _section(path: str, **values: Any) -> Section:
    return Section(f"report.{path}" if path else "report", values)


def _target(machine: Mapping[str, Any]) -> Section:
    ipus, tiles, num_bytes = machine["num_ipus"], machine["num_tiles"], machine["tile_bytes"]
    replicas = machine["num_replicas"]
    values = {
        "numReplicas": replicas,
        "clockFrequency": machine["clock_hz"],
        "architecture": _ARCHITECTURES.get(machine["chip"]),
    }
    if None not in (ipus, tiles, num_bytes):
        values |= {
            "numIPUs": replicas * ipus,
            "numTiles": replicas * ipus * tiles,
            "tilesPerIpu": tiles,
            "bytesPerTile": num_bytes,
            "bytesPerIPU": tiles * num_bytes,
            "totalMemory": replicas * ipus * tiles * num_bytes,
        }
    return Section("report.compilation.target", values)


class _Tiles(Sequence[Section]):
    """What each tile of some IPUs holds at the peak; made when it is asked for."""

    def __init__(self, path: str, memories: Sequence[Mapping[str, Any]]) -> None:
        self._path = path
        self._always, self._others = bytes_of_tiles(memories)
        self._categories = bytes_of_categories(memories)

    def __len__(self) -> int:
        return len(self._always)

    @overload
    def __getitem__(self, index: int) -> Section: ...

    @overload
    def __getitem__(self, index: slice) -> list[Section]: ...

    def __getitem__(self, index: int | slice) -> Section | list[Section]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        always, others = self._always[number], self._others[number]
        path = f"{self._path}[{number}]"
        memory = {
            "total": Section(f"{path}.memory.total", {"excludingGaps": always + others}),
            "alwaysLiveBytes": always,
            "notAlwaysLiveBytes": others,
            "category": Section(f"{path}.memory.category", self._category(path, number)),
        }
        return Section(path, {"memory": Section(f"{path}.memory", memory)})

    def _category(self, path: str, number: int) -> dict[str, Section]:
        return {
            name: Section(f"{path}.memory.category.{name}", {"total": held[number]})
            for name, held in self._categories.items()
        }


def _ipus(memories: Sequence[Mapping[str, Any]], num_ipus: int) -> list[Section]:
    return [
        _section(
            f"compilation.ipus[{number}]",
            tiles=_Tiles(f"report.compilation.ipus[{number}].tiles", memories[number : number + 1])
            if number < len(memories) and memories[number]["tiles"]
            else None,
        )
        for number in range(num_ipus)
    ]


def _all_tiles(memories: Sequence[Mapping[str, Any]]) -> _Tiles | None:
    is_known = memories and all(memory["tiles"] for memory in memories)
    return _Tiles("report.compilation.tiles", memories) if is_known else None


class _LivenessStep(Section):
    """What IPUs hold while one of them runs an operation."""

    def notAlwaysLiveMemoryForIpu(self, ipu: int) -> Section:
        """Returns the bytes of an IPU beside what is always live.

        Raises:
            NotInReport: there is no such IPU, or the timeline does not tell what it holds then.
        """
        if ipu not in self._values["held"]:
            raise NotInReport(
                f"{self._path} is a step of IPU {self._values['ipu']}; what IPU {ipu} holds then "
                f"is not known. {_ADVICE}"
            )
        held = {"bytes": self._values["held"][ipu]}
        return Section(f"{self._path}.notAlwaysLiveMemoryForIpu", held)


def _liveness_steps(view: Mapping[str, Any]) -> Iterator[Section]:
    memories, num_tiles = view["memory"]["ipus"], view["machine"].get("num_compute_tiles")
    if num_tiles is None:
        return
    number, moments = 0, fullest_moments(view)
    for index, memory in enumerate(memories):
        steps = memory["steps"]
        for name, num_bytes in zip(steps["names"], steps["live"], strict=True) if steps else ():
            path = f"report.compilation.livenessProgramSteps[{number}]"
            known = dict(enumerate(moments.get((index, name), ()))) | {index: num_bytes}
            held = {ipu: known[ipu] * num_tiles for ipu in known}
            kind = Program.Type.OnTileExecute
            program = Program(f"{path}.program", {"name": name, "id": number, "type": kind})
            all_ipus = {"bytes": sum(held.values())} if len(held) == len(memories) else {}
            yield _LivenessStep(
                path,
                {
                    "program": program,
                    "notAlwaysLiveMemory": Section(f"{path}.notAlwaysLiveMemory", all_ipus),
                    "ipu": index,
                    "held": held,
                },
            )
            number += 1


def _execution_steps(view: Mapping[str, Any]) -> Iterator[Section]:
    for timeline in view["timelines"]:
        if timeline["unit"] != "cycles":
            continue
        columns = timeline["columns"]
        order = sorted(range(len(columns["start"])), key=lambda event: columns["start"][event])
        for number, event in enumerate(order):
            path = f"report.execution.steps[{number}]"
            kind = timeline["kinds"][columns["kind"][event]]
            name = timeline["labels"][columns["label"][event]]["name"]
            type_ = _TYPE_OF_KIND.get(kind, Program.Type.OnTileExecute)
            program = Program(f"{path}.program", {"name": name, "type": type_})
            start, cycles = columns["start"][event], columns["duration"][event]
            ipus = [
                _ipu_step(f"{path}.ipus[{lane}]", start, cycles if is_mine else 0)
                for lane in range(len(timeline["lanes"]))
                for is_mine in (lane == columns["lane"][event],)
            ]
            yield Section(path, {"program": program, "ipus": ipus})


def _ipu_step(path: str, start: int, cycles: int) -> Section:
    first = Section(f"{path}.activeCycles.cyclesFrom", {"max": start})
    last = Section(f"{path}.activeCycles.cyclesTo", {"max": start + cycles})
    active = Section(f"{path}.activeCycles", {"cyclesFrom": first, "cyclesTo": last})
    return Section(path, {"cycles": cycles, "activeCycles": active})


def _runs(path: Path) -> Iterator[Section]:
    """Yields the calls that ran; those in the middle of a long run are not kept."""
    calls = read_calls(path)
    for index, (number, start_ns, end_ns) in enumerate(calls):
        name = f"report.execution.runs[{index}]"
        span = {
            "start": (start_ns - calls[0][1]) / _NS_PER_US,
            "end": (end_ns - calls[0][1]) / _NS_PER_US,
        }
        microseconds = Section(f"{name}.microseconds", span)
        yield Section(name, {"name": f"call {number}", "microseconds": microseconds})


def openTrace(path: str | Path) -> Section:
    """Returns what happened on the host, of a `profile.pop` that profiling wrote (exact).

    `processes[0].threads` are the calls, as the thread "calls", and each channel of `libpvti` or
    `poptorch.profiling`; a thread has `name` and `events`.

    Args:
        path: of the file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, is damaged, or is of another version.
    """
    with refuses_damage(Path(path)):
        read_profile_file(Path(path))  # Which says what is wrong with a file.
        return _trace(Path(path))


def _trace(path: Path) -> Section:
    spans: dict[str, list[tuple[str, int, int]]] = {}
    for number, start_ns, end_ns in read_calls(path):
        spans.setdefault("calls", []).append((f"call {number}", start_ns, end_ns))
    for channel, name, start_ns, end_ns in read_run(path).tracepoints:
        spans.setdefault(channel, []).append((name, start_ns, end_ns))
    first_ns = min((span[1] for found in spans.values() for span in found), default=0)
    threads = [
        Section(
            f"trace.processes[0].threads[{n}]", {"name": name, "events": nested(found, first_ns)}
        )
        for n, (name, found) in enumerate(spans.items())
    ]
    process = Section("trace.processes[0]", {"name": "poptorch_emu", "threads": threads})
    return Section("trace", {"processes": [process]})
