"""The tables of docs/fidelity.md are those of a run, and the run is that of the present model.

All rows take a minute; here a few of each kind are predicted again, most of which are traced in a
moment.
"""

import csv
import functools
import importlib
import math
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from poptorch_emu.machine.spread import SPREADS, Subject, spread
from poptorch_emu.machine.time_numbers import CONSTANTS, NUMBERS

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
TIMES = (
    "C23 Pod64", "C24", "C29", "C30 batch 4", "C12", "C13 inference", "C15", "C28 Pod4", "C39",
    "C41",
)  # fmt: skip
MEMORY = ("C36a", "C36a +25 %", "C36b", "C36b +25 %", "C41", "C42 training")
KEYS = {"constants": "number", "spreads": "subject"}


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
    names = "rows", "memory", "time", "constants", "cross_validation", "spreads"
    files = "time_rows", "fidelity", *(f"fidelity_{name}" for name in names)
    yield {name: importlib.import_module(name) for name in files}
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


def test_page_then_has_the_tables_and_the_picture_of_the_files() -> None:
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
SWITCHED = [line for line in lines_of("constants") if line["most changed"] in TIMES]


@pytest.mark.parametrize("line", SWITCHED, ids=lambda line: line["number"])
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
    assert list(rows_of("constants")) == list(numbers)
    assert list(rows_of("spreads")) == [each.name.lower() for each in Subject]
    assert set(rows_of("cross_validation")) == {row.name for row in rows.TIME_ROWS}
    settings = [(each.row.name, each.otherwise) for each in rows.OTHER_SETTINGS]
    assert [(line["row"], line["otherwise"]) for line in lines_of("settings")] == settings
    assert list(rows_of("time")) == [row.name for row in benchmarks["time_rows"].TIME_ROWS]
    assert list(rows_of("memory")) == [row.name for row in benchmarks["fidelity_rows"].ROWS]


def test_spreads_of_the_package_then_are_those_of_the_file() -> None:
    found = {each.name.lower(): value for each, value in SPREADS.items()}
    assert found == {name: float(row["spread"]) for name, row in rows_of("spreads").items()}


def test_intervals_then_hold_four_of_five_rows_of_families_that_were_left_out() -> None:
    rows = rows_of("cross_validation").values()
    ratios = {row["row"]: float(row["predicted"]) / float(row["published"]) for row in rows}
    inside = [abs(math.log(ratios[row["row"]])) <= float(row["spread"]) for row in rows]
    assert sum(inside) >= 0.8 * len(inside)


def test_readme_then_has_the_error_in_cross_validation() -> None:
    errors = [abs(float(row["error"])) for row in rows_of("cross_validation").values()]
    error = f"{100 * statistics.median(errors):.1f} % over {len(errors)} published rows"
    assert error in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_constant_that_is_fitted_to_rows_then_is_fitted_anew(benchmarks) -> None:
    names = [row.name for row in benchmarks["time_rows"].TIME_ROWS]
    fitted = [
        name
        for name, constant in CONSTANTS.items()
        if constant.fitted_to and any(row.startswith(constant.fitted_to) for row in names)
    ]
    assert list(benchmarks["fidelity_cross_validation"].GRIDS) == fitted


@pytest.mark.parametrize("name", ["C13 inference", "C15", "C11 synthetic"])
def test_row_that_is_left_out_then_has_the_error_of_the_file(benchmarks, captured, name) -> None:
    tested = benchmarks["fidelity_cross_validation"]
    cases = [captured(row) for row in ("C13 inference", "C15", "C11 synthetic")]
    row = rows_of("cross_validation")[name]
    anew = dict(each.split() for each in row["fitted anew"].split(", "))
    if "call_seconds" in anew:
        assert anew == {"call_seconds": f"{tested.without(row['family'], cases)['call_seconds']:g}"}
    (held,) = (
        tested.held(case, cases, {key: float(value) for key, value in anew.items()})
        for case in cases
        if case.row.name == name
    )
    assert held.error == pytest.approx(float(row["error"]), abs=2e-3)


def row_with(benchmarks, error: float, **amounts: float):
    given = {Subject[name]: amount for name, amount in amounts.items()}
    row = benchmarks["time_rows"].TIME_ROWS[0]
    return benchmarks["fidelity_cross_validation"].Held(row, {}, error, error, given)


def test_spread_then_is_the_error_that_four_of_five_rows_do_not_exceed(benchmarks) -> None:
    """Each of 9 rows has one subject, so that the spreads alone cover 8 of them."""
    errors = [0.1 * n for n in range(1, 10)]
    rows = [row_with(benchmarks, error, HOST=3.0) for error in errors]
    rows += [row_with(benchmarks, -error / 10, WORK=1.0) for error in errors]
    found = benchmarks["fidelity_spreads"].fitted_spreads(rows)
    assert found[Subject.HOST] == pytest.approx(10 * found[Subject.WORK], rel=0.02)
    covered = [abs(row.log_error) <= spread(row.amounts, None, found) for row in rows]
    assert 0.8 * (len(rows) + 1) <= sum(covered) < len(rows)


@pytest.mark.parametrize("row", rows_of("memory").values(), ids=lambda row: row["row"])
def test_verdicts_then_do_not_contradict_what_was_published(row) -> None:
    """A model that is known to fit must be predicted to fit, and the other way round."""
    allowed = {"fits": ("fits", "close"), "does not fit": ("does not fit", "close")}
    assert row["predicted"] in allowed[row["published"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--constants", "C15"], "needs all rows"),
        (["--constants", "--memory"], "needs all rows"),
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
