"""Programs of a `pva` report, their visitors, and the vertices and compute sets in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from poptorch_emu.companions.report_sections import ByTile, Section

Row = dict[str, Any]


class Program(Section):
    """The program of a step (modelled): a stage of the pipeline, a copy or an update."""

    class Type(Enum):
        """Kinds of programs; reports contain the first five, and one sequence of them."""

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
    """Base class of visitors of programs; its methods do nothing (exact)."""

    def __getattr__(self, name: str) -> Callable[[Program], None]:
        """Returns a method that does nothing, if `name` is `visit` and a type of program.

        Raises:
            AttributeError: `name` does not name a type of program.
        """
        if name.removeprefix("visit") not in Program.Type.__members__:
            raise AttributeError(
                f"A ProgramVisitor has no {name!r}: there is no such Program.Type."
            )
        return lambda program: None


# Type of program for each kind of work in a timeline.
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
    """Returns the program of a kind of work, with the operations that run in it.

    Args:
        path: path of the program within the report.
        name: name of the program.
        kind: kind of work, as timelines name it.
        rows: the operations.
        tiles: 1 for each tile that runs them; `None` if not known.
        more: further values of the program.
    """
    type_ = _TYPE_OF_KIND.get(kind, Program.Type.OnTileExecute)
    values = {"name": name, "type": type_, **more}
    if type_ is Program.Type.OnTileExecute:
        values["computeset"] = Section(
            f"{path}.computeset", {"name": name, "vertices": _vertices(path, rows, tiles)}
        )
    return Program(path, values)


def _vertices(path: str, rows: Iterable[Row], tiles: ByTile | None) -> list[Section]:
    """Returns one vertex for each operator; in the model each tile that computes has one of it."""
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
