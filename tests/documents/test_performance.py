"""The tables of docs/performance.md, and the runs in benchmarks/results behind them."""

import csv
import importlib.util
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Files of measurements. Files that begin with `fidelity_` contain predictions, which have no
# machine and no date. `zoo.csv` contains outcomes, and no figures.
FILES = sorted(
    path
    for path in (ROOT / "benchmarks" / "results").glob("*.csv")
    if not path.name.startswith(("fidelity_", "zoo"))
)
FIGURE = re.compile(r"-?\d+(\.\d+)?( to -?\d+(\.\d+)?)?")
# Columns that contain words; all others contain figures.
WORDS = {
    *("date", "machine", "commit", "torch", "dtype", "workload", "model", "note", "kept", "area"),
    *("lever", "where", "subject", "quantity", "unit", "role", "kernel", "processor", "packing"),
    "against",
    "best_peer",
}


def module(name: str, folder: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def performance():
    sys.path.insert(0, str(ROOT / "tools"))
    yield module("performance", "tools")
    sys.path.remove(str(ROOT / "tools"))


def test_document_in_the_repository_then_is_up_to_date_and_short():
    tool = ROOT / "tools" / "performance.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (ROOT / "docs" / "performance.md").stat().st_size <= 8 * 1024


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_results_then_each_row_has_a_date_and_figures(path):
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    assert rows and {"date", "machine", "commit", "note"} <= set(reader.fieldnames)
    for row in rows:
        date.fromisoformat(row["date"])
        assert None not in row and None not in row.values(), row
        figures = {column: text for column, text in row.items() if text and column not in WORDS}
        assert [column for column, text in figures.items() if not FIGURE.fullmatch(text)] == []


def test_levers_of_the_table_then_they_are_ten_and_their_places_exist(performance):
    shown = [row for row in performance.rows_of("levers") if row["rank"]]
    assert {int(row["rank"]) for row in shown} == set(range(1, 11))
    assert {row["kept"] for row in shown} == {"yes"}
    roots = (ROOT, ROOT / "poptorch_emu")
    places = {row["where"] for row in shown}
    assert [place for place in places if not any((root / place).exists() for root in roots)] == []


def row(**figures):
    return {"machine": "A", "cpus": "2", "commit": "c", "note": "", "workload": "mlp", **figures}


def test_newest_then_is_the_last_row_of_the_last_date_without_notes(performance):
    rows = [
        row(date="2026-01-02", value="2"),
        row(date="2026-01-02", value="3"),
        row(date="2026-01-01", value="1"),
        row(date="2026-01-03", value="4", note="on another machine"),
        row(date="2026-01-03", value="5", cpus="16"),
        row(date="2026-01-01", value="6", workload="lstm"),
    ]
    assert {w: found["value"] for w, found in performance.newest(rows)["A"].items()} == {
        "mlp": "3",
        "lstm": "6",
    }


def test_table_then_has_machines_side_by_side_and_means(performance):
    rows = [
        row(date="2026-01-01", ratio="2.0"),
        row(date="2026-01-01", ratio="8.0", workload="lstm"),
        row(date="2026-01-02", ratio="3.0", machine="B"),
    ]
    column = performance.Column("ratio", lambda row: row["ratio"], has_mean=True)
    text = performance.by_workload(performance.newest(rows), [column])
    assert text.startswith("Measured: A on 2026-01-01 (c); B on 2026-01-02 (c).\n\n")
    assert "| Workload | A: ratio | B: ratio |\n|---|---:|---:|\n" in text
    assert "| MLP | 2.0 | 3.0 |" in text and "| LSTM | 8.0 |  |" in text
    assert text.endswith("| geometric mean | 4.00 | 3.00 |")


def test_appended_rows_then_they_have_machine_and_date_and_unknown_columns_are_refused(tmp_path):
    result_files = module("result_files", "benchmarks")
    path = tmp_path / "speed.csv"
    path.write_text("date,machine,workload,speed,ratio\n")
    result_files.append(path, [{"workload": "mlp", "speed": 12345.6}, {"ratio": float("nan")}])
    first, second = csv.DictReader(path.read_text().splitlines())
    assert first["workload"] == "mlp" and first["speed"] == "12346" and first["ratio"] == ""
    assert date.fromisoformat(second["date"]) and second["machine"] and second["ratio"] == ""
    with pytest.raises(ValueError, match=r"speed\.csv has no column steps"):
        result_files.append(path, [{"steps": 1}])
