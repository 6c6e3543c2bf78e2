"""Programs of a report of `pva`, what visits them, and the vertices and compute sets in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from poptorch_emu.companions.report_sections import ByTile, Section

Row = dict[str, Any]


class Program(Section):
    """What runs in a step (modelled): here a stage of the pipeline, a copy or an update."""

    class Type(Enum):
        """Kinds of programs; reports have the first five, and a sequence of them."""

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


def program_of(
    path: str, name: str, kind: str, rows: Sequence[Row], tiles: ByTile | None, **more: Any
) -> Program:
    """Returns a program of a kind of work, with the operations that run in it.

    Args:
        path: where it stands in the report.
        name: of the program.
        kind: of the work, as timelines have it.
        rows: the operations.
        tiles: 1 for each tile on which they run, if that is known.
        more: further values.
    """
    type_ = _TYPE_OF_KIND.get(kind, Program.Type.OnTileExecute)
    values = {"name": name, "type": type_, **more}
    if type_ is Program.Type.OnTileExecute:
        values["computeset"] = Section(
            f"{path}.computeset", {"name": name, "vertices": _vertices(path, rows, tiles)}
        )
    return Program(path, values)


def _vertices(path: str, rows: Iterable[Row], tiles: ByTile | None) -> list[Section]:
    """Returns a vertex for each operator, which the model has once on each tile that computes."""
    counts = Counter(str(row["operator"]) for row in rows)
    return [
        Section(
            f"{path}.computeset.vertices[{number}]",
            {
                "type": Section(f"{path}.computeset.vertices[{number}].type", {"name": operator}),
                "countByTile": None if tiles is None else tiles.times(count),
            },
        )
        for number, (operator, count) in enumerate(counts.items())
    ]
