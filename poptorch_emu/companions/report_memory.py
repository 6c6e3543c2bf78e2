"""Memory part of a `pva` report: tiles, variables, and bytes that are live at each operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from poptorch_emu.companions.bytes_of_tiles import (
    always_live,
    bytes_of_categories,
    bytes_of_tiles,
)
from poptorch_emu.companions.fullest_moments import fullest_moments
from poptorch_emu.companions.report_programs import Row, program_of
from poptorch_emu.companions.report_sections import ADVICE, NotInReport, Section, used_tiles
from poptorch_emu.report.trace_operations import rows_of, step_name

Memory = Mapping[str, Any]

# Categories that scripts subtract although the model of the machine has no values for them.
_WITHOUT_MODEL = ("hostExchangeCode", "vectorListDescriptor", "vertexFieldData")


class Tiles(Sequence[Section]):
    """Bytes of each tile of some IPUs at the peak; an entry is computed when it is read."""

    def __init__(self, path: str, memories: Sequence[Memory]) -> None:
        """Stores the path within the report, and the memories of the IPUs, one after another."""
        self._path = path
        self._always, self._others = bytes_of_tiles(memories)
        self._categories = bytes_of_categories(memories)
        self._limits = [memory["limit_bytes"] for memory in memories]

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
        limit = self._limits[number * len(self._limits) // len(self)]
        path = f"{self._path}[{number}]"
        memory = {
            "total": _with_gaps(f"{path}.memory.total", always + others),
            "overflowed": _with_gaps(f"{path}.memory.overflowed", max(0, always + others - limit)),
            "alwaysLiveBytes": always,
            "notAlwaysLiveBytes": others,
            "category": Section(f"{path}.memory.category", self._category(path, number)),
        }
        return Section(path, {"memory": Section(f"{path}.memory", memory)})

    def _category(self, path: str, number: int) -> dict[str, Section]:
        held = {name: totals[number] for name, totals in self._categories.items()}
        return {
            name: Section(f"{path}.memory.category.{name}", {"total": total})
            for name, total in (held | dict.fromkeys(_WITHOUT_MODEL, 0)).items()
        }


def _with_gaps(path: str, num_bytes: int) -> Section:
    """Returns bytes by both names; they are equal, because the model leaves no gaps."""
    return Section(path, {"excludingGaps": num_bytes, "includingGaps": num_bytes})


def are_known(memories: Sequence[Memory]) -> bool:
    """Returns whether a report holds the tiles of all these IPUs."""
    return bool(memories) and all(memory["tiles"] for memory in memories)


def _variables(path: str, sizes: Mapping[str, int]) -> list[Section]:
    return [
        Section(f"{path}[{number}]", {"name": name, "size": num_bytes})
        for number, (name, num_bytes) in enumerate(sizes.items())
    ]


class Compilation(Section):
    """Properties of a program that are known before it runs (modelled)."""

    def alwaysLiveVariablesForTile(self, tile: int) -> list[Section]:
        """Returns the always-live bytes of a tile, by category (modelled).

        Raises:
            IndexError: `tile` is out of range.
            NotInReport: the report has no bytes of tiles.
        """
        tiles = self.tiles  # Raises `NotInReport` if the report has no bytes of tiles.
        number = range(len(tiles))[tile]
        held = always_live(self._values["memories"])
        path = f"{self._path}.alwaysLiveVariablesForTile({tile})"
        sizes = {name: sizes[number] for name, sizes in held.items() if sizes[number]}
        return _variables(path, sizes)


def always_live_variables(memories: Sequence[Memory]) -> list[Section] | None:
    """Returns the always-live bytes of all IPUs by category: data such as weights, and code.

    The sizes add up to the always-live bytes of all tiles.
    """
    if not are_known(memories):
        return None
    sizes = {name: sum(held) for name, held in always_live(memories).items() if any(held)}
    return _variables("report.compilation.alwaysLiveVariables", sizes)


class LivenessStep(Section):
    """Bytes on the IPUs while one of them runs an operation (modelled)."""

    def notAlwaysLiveMemoryForIpu(self, ipu: int) -> Section:
        """Returns the bytes of an IPU that are not always live, with the variables that hold them.

        Raises:
            NotInReport: `ipu` is out of range, or the timeline does not tell its bytes at this
                step.
        """
        held = self._values["held"]
        if ipu not in held:
            raise NotInReport(
                f"{self._path} is a step of IPU {self._values['ipu']}; the memory of IPU {ipu} at "
                f"this step is not known. {ADVICE}"
            )
        path = f"{self._path}.notAlwaysLiveMemoryForIpu"
        sizes = self._sizes({ipu: held[ipu]})
        return Section(path, {"bytes": held[ipu], "variables": _variables(path, sizes)})

    def notAlwaysLiveMemoryForTile(self, tile: int) -> Section:
        """Returns the bytes of the mean tile of the IPU to which `tile` belongs.

        Raises:
            NotInReport: `tile` is out of range, or the bytes of its IPU at this step are not known.
        """
        num_tiles, num_used = self._values["tiles"]
        of_ipu = self.notAlwaysLiveMemoryForIpu(tile // num_tiles)
        path = f"{self._path}.notAlwaysLiveMemoryForTile"
        sizes = {each.name: round(each.size / num_used) for each in of_ipu.variables}
        values = {"bytes": sum(sizes.values()), "variables": _variables(path, sizes)}
        return Section(path, values)

    def all_ipus(self) -> Section:
        """Returns the bytes of all IPUs; an empty section if those of an IPU are not known."""
        path, held = f"{self._path}.notAlwaysLiveMemory", self._values["held"]
        if len(held) != self._values["num_ipus"]:
            return Section(path, {})
        sizes = self._sizes(held)
        return Section(path, {"bytes": sum(held.values()), "variables": _variables(path, sizes)})

    def _sizes(self, held: Mapping[int, int]) -> dict[str, int]:
        """Names bytes: first the largest tensors of this step's IPU, then the rest of each IPU."""
        sizes: dict[str, int] = {}
        for ipu, num_bytes in held.items():
            left = num_bytes
            if ipu == self._values["ipu"]:
                for name, most in self._values["largest"]:
                    if left:
                        sizes[name] = min(most, left)
                        left -= sizes[name]
            if left:
                sizes[f"live on IPU {ipu}"] = left
        return sizes


def liveness_steps(view: Mapping[str, Any]) -> Iterator[Section]:
    """Yields the operations of each IPU in turn, with the bytes that are live at each."""
    memories, num_used = view["memory"]["ipus"], view["machine"].get("num_compute_tiles")
    num_tiles = view["machine"]["num_tiles"]
    if num_used is None:
        return
    number, moments, rows = 0, fullest_moments(view), _rows_by_step(view)
    for index, memory in enumerate(memories):
        steps = memory["steps"]
        tiles = used_tiles(view["machine"], index)
        levels = zip(steps["names"], steps["live"], strict=True) if steps else ()
        for position, (name, num_bytes) in enumerate(levels):
            path = f"report.compilation.livenessProgramSteps[{number}]"
            known = dict(enumerate(moments.get((index, name), ()))) | {index: num_bytes}
            row = rows.get((index, name))
            program = program_of(
                f"{path}.program", name, "", [row] if row else [], tiles, id=number
            )
            step = LivenessStep(
                path,
                {
                    "program": program,
                    "ipu": index,
                    "held": {ipu: known[ipu] * num_used for ipu in known},
                    "num_ipus": len(memories),
                    "tiles": (num_tiles or num_used, num_used),
                    "largest": _largest(memory, position, num_used),
                },
            )
            step._values["notAlwaysLiveMemory"] = step.all_ipus()
            yield step
            number += 1


def _largest(memory: Memory, position: int, num_used: int) -> list[tuple[str, int]]:
    """Returns names and bytes of the largest tensors that are live at a step."""
    peak, steps = memory["peak"], memory["steps"]
    if steps["names"][position] == peak["name"]:
        found = {each["name"]: each["bytes"] for each in peak["tensors"]}
    else:
        live = steps["largest"][position]
        found = {memory["live_names"][number]: num_bytes for number, num_bytes in live}
    return [(name, num_bytes * num_used) for name, num_bytes in found.items()]


def _rows_by_step(view: Mapping[str, Any]) -> dict[tuple[int, str], Row]:
    positions = {memory["ipu"]: index for index, memory in enumerate(view["memory"]["ipus"])}
    rows = rows_of(view["operations"])
    return {(positions.get(row["ipu"], -1), step_name(row)): row for row in rows}
