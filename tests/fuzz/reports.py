"""Checks files of reports that are damaged, or forged with SQL, and pages with forged data.

Reading such a file must return its contents or raise one error that names the file.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from fuzz.files import changed, damaged

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.companions import pva
from poptorch_emu.report import view
from poptorch_emu.report.page.page_file import read_reports
from poptorch_emu.report.report_check import ReportError

_BEGIN = '<script type="application/json" id="report-data">'
_CELLS = (
    None,
    -1,
    0,
    1,
    2**31,
    2**62,
    -(2**62),
    1.5,
    float("inf"),
    "",
    "forward 0",
    b"",
    b"\0" * 64,
)
_NUM_VISITED = 3  # Number of entries of each list that are read; more of them find nothing else.


@functools.cache
def genuine() -> tuple[bytes, str]:
    """Returns the profile of a training run with two stages, and its page."""
    with tempfile.TemporaryDirectory() as place:
        options = poptorch.Options().showCompilationProgressBar(False).modelName("model")
        options.enableProfiling(place).Training.gradientAccumulation(4)
        model = poptorch.trainingModel(_Stages(), options)
        with poptorch.profiling.Channel("mine").tracepoint("loading"):
            x = torch.ones(4, 3)
        for _ in range(2):
            model(x)
        model.destroy()
        path, page = Path(place) / "model" / "profile.pop", Path(place) / "page.html"
        _view(path, page)
        return path.read_bytes(), page.read_text(encoding="utf-8")


class _Stages(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))

    def forward(self, x: torch.Tensor) -> Any:
        for ipu, layer in enumerate(self.layers):
            poptorch.Block.start(f"block{ipu}", ipu_id=ipu)
            x = torch.relu(layer(x))
        return x, poptorch.identity_loss(x, "sum")


def check_reports(seed: int) -> str:
    """Changes a file and reads it in all ways; returns a description of the change, or raises."""
    choice = random.Random(seed)
    profile, page = genuine()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "profile.pop"
        kind = choice.choice(("damage", "sql", "sql", "section", "section", "page"))
        if kind == "damage":
            path.write_bytes(damaged(profile, choice))
        elif kind == "page":
            path.write_text(_forged_page(page, choice), encoding="utf-8")
        else:
            path.write_bytes(profile)
            _forge(path, choice, _forge_section if kind == "section" else _forge_rows)
        said = [
            _outcome(read, path) for read in (_summarise, _open, _trace, _make_page, _read_page)
        ]
    return f"{kind}: {said}"


def _forge(path: Path, choice: random.Random, change: Callable[..., None]) -> None:
    # A second change may fail, because the first may have left nothing to change.
    nothing_left = contextlib.suppress(sqlite3.Error, ValueError, RecursionError)
    with closing(sqlite3.connect(path)) as file, nothing_left:
        for _ in range(choice.randint(1, 2)):
            change(file, choice)
        file.commit()


def _forge_section(file: sqlite3.Connection, choice: random.Random) -> None:
    names = [name for (name,) in file.execute("select name from section")]
    name = choice.choice(names)
    (text,) = file.execute("select value from section where name = ?", (name,)).fetchone()
    kind = choice.random()
    if kind < 0.05:
        text = "[" * 100_000
    elif kind < 0.1:
        text = damaged(text.encode(), choice).decode(errors="replace")
    else:
        text = json.dumps(changed(json.loads(text), choice))
    file.execute("update section set value = ? where name = ?", (text, name))


def _forge_rows(file: sqlite3.Connection, choice: random.Random) -> None:
    tables = [name for (name,) in file.execute("select name from sqlite_master where type='table'")]
    table = choice.choice(tables)
    columns = [row[1] for row in file.execute(f"pragma table_info({table})")]
    column, value = choice.choice(columns), choice.choice(_CELLS)
    (num_rows,) = file.execute(f"select count(*) from {table}").fetchone()
    at = choice.randrange(num_rows) if num_rows else 0
    row = f"rowid = (select rowid from {table} limit 1 offset {at})"
    forgeries = (
        f"update {table} set {column} = ? where {row}",
        f"update {table} set {column} = ?",
        f"delete from {table} where {row} or ? is 7",
        f"delete from {table} where ? is not 7",
        f"insert into {table} ({column}) values (?)",
        f"alter table {table} rename column {column} to other",
        f"alter table {table} drop column {column}",
        f"drop table {table}",
        f"pragma user_version = {choice.choice((0, 2, 99))}",
        f"create view endless as with recursive n(i) as (select 1 union all select i + 1 from n) "
        f"select i as {column} from n",
    )
    forgery = choice.choice(forgeries[:5] if choice.random() < 0.8 else forgeries)
    file.execute(forgery, (value,) if "?" in forgery else ())
    if "endless" in forgery:
        file.execute(f"drop table {table}")
        file.execute(f"alter view endless rename to {table}")


def _forged_page(page: str, choice: random.Random) -> str:
    head, _, rest = page.partition(_BEGIN)
    data, _, foot = rest.partition("</script>")
    if choice.random() < 0.1:
        return damaged(page.encode(), choice).decode(errors="replace")
    value = json.loads(data)
    for _ in range(choice.randint(1, 2)):
        value = changed(value, choice)
    return f"{head}{_BEGIN}{json.dumps(value)}</script>{foot}"


def _outcome(read: Callable[[Path], None], path: Path) -> str:
    try:
        read(path)
    except ValueError as error:
        assert str(path) in str(error), error
        assert type(error).__name__ == "ReportError", type(error)
        return "refused"
    return "read"


def _summarise(path: Path) -> None:
    report = emulator.read_report(path)
    assert str(report).replace("\n", "").isprintable()
    report._repr_html_()


def _open(path: Path) -> None:
    _visit(pva.openReport(path))


def _trace(path: Path) -> None:
    _visit(pva.openTrace(path))


def _make_page(path: Path) -> None:
    page = path.with_name("page.html")
    _view(path, page)
    assert len(read_reports(page)) == 1


def _read_page(path: Path) -> None:
    read_reports(path)


def _view(path: Path, page: Path) -> None:
    """Runs `poptorch-emu view`, which must end with a message about a bad file."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            view.main([str(path), "-o", str(page)])
    except SystemExit as ended:
        assert ended.code == 2, said.getvalue()
        raise ReportError(said.getvalue()) from ended


def _visit(value: Any) -> None:
    """Reads all values in a section, also nested ones."""
    if isinstance(value, pva.Section):
        for name in list(value._values):
            _visit(getattr(value, name))
        if hasattr(type(value), "notAlwaysLiveMemoryForIpu"):
            with contextlib.suppress(pva.NotInReport):
                _visit(value.notAlwaysLiveMemoryForIpu(0))
    elif hasattr(value, "__getitem__") and not isinstance(value, (str, dict)):
        for index in range(min(len(value), _NUM_VISITED)):
            _visit(value[index])
