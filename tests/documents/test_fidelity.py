"""The tables of docs/fidelity.md are those of a run, and the run is that of the present model.

All rows take a minute; here a few of each kind are predicted again, most of which are traced in a
moment.
"""

import csv
import functools
import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from poptorch_emu.machine.time_numbers import NUMBERS

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
TIMES = (
    "C23 Pod64", "C24", "C29", "C30 batch 4", "C12", "C13 inference", "C15", "C28 Pod4", "C39",
    "C41",
)  # fmt: skip
MEMORY = ("C36a", "C36a +25 %", "C36b", "C36b +25 %", "C41", "C42 training")
KEYS = {"constants": "number", "families": "family"}


def lines_of(name: str) -> list[dict[str, str]]:
    path = BENCHMARKS / "results" / f"fidelity_{name}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def rows_of(name: str) -> dict[str, dict[str, str]]:
    return {line[KEYS.get(name, "row")]: line for line in lines_of(name)}


@pytest.fixture(scope="module")
def benchmarks():
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    names = "fidelity_rows", "fidelity_memory", "fidelity_time", "fidelity_constants", "time_rows"
    yield {name: importlib.import_module(name) for name in (*names, "fidelity")}
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(BENCHMARKS) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


@pytest.fixture(scope="module")
def captured(benchmarks):
    """Captures each row once."""
    rows = benchmarks["time_rows"].ROW_OF_NAME
    return functools.cache(lambda name: benchmarks["fidelity_time"].capture(rows[name]))


def test_page_then_has_the_tables_of_the_files() -> None:
    tool = ROOT / "tools" / "fidelity.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", TIMES)
def test_speeds_then_are_those_of_the_file(captured, name) -> None:
    figures = captured(name).figures()
    kept = rows_of("time")[name]
    assert int(kept["predicted"]) == pytest.approx(figures["predicted"], rel=1e-4)
    assert {key: str(value) for key, value in figures.items() if key != "predicted"} == {
        key: value for key, value in kept.items() if key != "predicted"
    }


@pytest.mark.parametrize("name", MEMORY)
def test_memory_then_is_that_of_the_file(benchmarks, name) -> None:
    (row,) = (row for row in benchmarks["fidelity_rows"].ROWS if row.name == name)
    figures = benchmarks["fidelity_memory"].planned(row).figures()
    assert {key: str(value) for key, value in figures.items()} == rows_of("memory")[name]


# Constants whose largest effect is on a step time.
CONSTANTS = [line for line in lines_of("constants") if line["most changed"] in TIMES]


@pytest.mark.parametrize("line", CONSTANTS, ids=lambda line: line["number"])
def test_constants_then_change_a_row_as_the_file_says(benchmarks, captured, line) -> None:
    case, percent = captured(line["most changed"]), benchmarks["fidelity_constants"].percent
    numbers = replace(NUMBERS, **{line["number"]: float(line["value"])})
    assert line["without"] == percent(case.error(numbers))
    assert line["with"] == percent(case.error())
    assert case.predicted(numbers) != case.predicted()


def test_settings_then_change_a_row_as_the_file_says(benchmarks) -> None:
    """The test predicts one row, whose other setting is traced quickly."""
    (setting,) = (
        setting
        for setting in benchmarks["time_rows"].OTHER_SETTINGS
        if setting.row.name == "C11 synthetic"
    )
    (line,) = (line for line in lines_of("settings") if line["row"] == "C11 synthetic")
    predicted = benchmarks["fidelity_time"].capture(setting.row).figures()["predicted"]
    assert int(line["predicted"]) == pytest.approx(predicted, rel=1e-4)


def test_files_then_have_every_row(benchmarks) -> None:
    numbers, rows = benchmarks["fidelity_constants"].WITHOUT, benchmarks["time_rows"]
    assert list(rows_of("constants")) == ["all as it is", *numbers]
    assert list(rows_of("families")) == sorted({r.family for r in rows.TIME_ROWS if r.is_goal})
    settings = [(each.row.name, each.otherwise) for each in rows.OTHER_SETTINGS]
    assert [(line["row"], line["otherwise"]) for line in lines_of("settings")] == settings
    assert list(rows_of("time")) == [row.name for row in benchmarks["time_rows"].TIME_ROWS]
    assert list(rows_of("memory")) == [row.name for row in benchmarks["fidelity_rows"].ROWS]


@pytest.mark.parametrize("row", rows_of("memory").values(), ids=lambda row: row["row"])
def test_verdicts_then_do_not_contradict_what_was_published(row) -> None:
    """A model that is known to fit must be predicted to fit, and the other way round."""
    allowed = {"fits": ("fits", "close"), "does not fit": ("does not fit", "close")}
    assert row["predicted"] in allowed[row["published"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--constants", "C15"], "needs the speeds of all rows"),
        (["--constants", "--memory"], "needs the speeds of all rows"),
        (["C15", "C99"], "no row's name begins with 'C99'"),
    ],
)
def test_words_when_they_leave_out_rows_then_are_refused(
    benchmarks, capsys, words, message
) -> None:
    with pytest.raises(SystemExit):
        benchmarks["fidelity"].parsed(words)
    assert message in capsys.readouterr().err


def test_file_when_it_is_written_whole_then_keeps_nothing(benchmarks, tmp_path) -> None:
    path, write = tmp_path / "some.csv", benchmarks["fidelity"].write
    write(path, [{"row": "old, 1", "value": 1}, {"row": "both", "value": 1}])
    write(path, [{"row": "both", "value": 2}], keeps_others=True)
    assert path.read_text() == 'row,value\n"old, 1",1\nboth,2\n'
    write(path, [{"row": "new", "value": 3}])
    assert path.read_text() == "row,value\nnew,3\n"


def test_lines_then_are_printed_as_the_file_has_them(benchmarks, capsys) -> None:
    benchmarks["fidelity"].shown("some", [{"row": "one, two", "value": 1}])
    assert capsys.readouterr().out == '\nfidelity_some\nrow,value\n"one, two",1\n'
