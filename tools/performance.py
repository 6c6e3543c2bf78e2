"""Writes the tables of docs/performance.md from the runs in benchmarks/results.

A table shows the newest run of each machine and workload, and the last row of one date. A row with
a note appears in the file only, because it was measured under other circumstances.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import marked_tables

DOCUMENT = marked_tables.ROOT / "docs" / "performance.md"
RESULTS = marked_tables.ROOT / "benchmarks" / "results"
TITLES = {
    "mnist": "MNIST",
    "mlp": "MLP",
    "encoder 2x128": "encoder 2 × 128",
    "encoder 4x512": "encoder 4 × 512",
    "resnet": "ResNet",
    "lstm": "LSTM",
    "embedding": "embedding",
    "mnist inference": "MNIST, inference",
    "encoder 4x256 inference": "encoder 4 × 256, inference",
}
PEERS = {
    "eager": "eager",
    "compile": "`torch.compile`",
    "expert": "expert",
    "expert_channels_last": "expert, channels last",
    "expert_compiled": "expert, compiled",
    "expert_compiled_channels_last": "expert, compiled, channels last",
    "expert_max_autotune": "expert, max-autotune",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
# Workloads whose ratios depend on the Python overhead of a call more than on computing.
SMALL = ("mlp", "embedding")
# Number of processors of the machines in the tables.
_CPUS = "2"

Row = dict[str, str]
Runs = dict[str, dict[str, Row]]  # rows by machine and workload


@dataclass(frozen=True)
class Column:
    """A column that each machine has.

    Attributes:
        title: text after the machine's name.
        cell: function that returns the text of a cell.
        has_mean: whether the geometric mean appears below the column.
    """

    title: str
    cell: Callable[[Row], str]
    has_mean: bool = False


def rows_of(name: str) -> list[Row]:
    """Returns the rows of a file of `benchmarks/results`."""
    with (RESULTS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def newest(rows: Iterable[Row], key: str = "workload") -> Runs:
    """Returns the newest row of each machine and workload, machines in alphabetical order."""
    found: Runs = {}
    for row in sorted(rows, key=lambda row: row["date"]):
        if not row["note"] and row.get("cpus", _CPUS) == _CPUS:
            found.setdefault(row["machine"], {})[row[key]] = row
    return dict(sorted(found.items()))


def by_workload(runs: Runs, columns: list[Column], left_out: Sequence[str] = ()) -> str:
    """Returns the dates of the measurements, and a table with a line for each workload.

    Args:
        runs: rows of several machines.
        columns: columns for each machine.
        left_out: workloads that a second line of means excludes; no such line if empty.
    """
    pairs = [(rows, column) for rows in runs.values() for column in columns]
    titles = [column.title for column in columns]
    head = [title for machine in runs for title in (f"{machine}: {titles[0]}", *titles[1:])]
    lines = [["Workload", *head]]
    for workload, title in TITLES.items():
        cells = [column.cell(rows[workload]) if workload in rows else "" for rows, column in pairs]
        lines.append([title, *cells])
    if any(column.has_mean for column in columns):
        lines.append(["geometric mean", *(_mean(rows, column) for rows, column in pairs)])
    if left_out:
        names = " and ".join(TITLES[name] for name in left_out)
        means = (_mean(_without(rows, left_out), column) for rows, column in pairs)
        lines.append([f"geometric mean without {names}", *means])
    return f"{_measured(runs)}\n\n{_markdown(lines)}"


def _mean(rows: dict[str, Row], column: Column) -> str:
    cells = [column.cell(row) for row in rows.values() if column.has_mean]
    return f"{statistics.geometric_mean(map(float, filter(None, cells))):.2f}" if cells else ""


def _without(rows: dict[str, Row], left_out: Sequence[str]) -> dict[str, Row]:
    return {name: row for name, row in rows.items() if name not in left_out}


def _measured(runs: Runs) -> str:
    parts = []
    for machine, rows in runs.items():
        versions = sorted({f"{row['date']} ({row['commit']})" for row in rows.values()})
        parts.append(f"{machine} on {' and '.join(versions)}")
    return f"Measured: {'; '.join(parts)}."


def _markdown(lines: list[list[str]], rule: str = "---:") -> str:
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, f"|---|{(rule + '|') * (len(lines[0]) - 1)}", *body])


def _figure(name: str) -> Callable[[Row], str]:
    return lambda row: f"{float(row[name]):.3g}"


def _cpu_ratio(row: Row) -> str:
    plain = row["eager_1_thread_cpu_ms_per_sample"]
    return f"{float(row['poptorch_emu_cpu_ms_per_sample']) / float(plain):.2f}" if plain else ""


def speed() -> str:
    """Returns ratios of throughput, and CPU time relative to eager PyTorch on one thread."""
    columns = [
        Column("eager", _figure("vs_eager"), has_mean=True),
        Column("compile", _figure("vs_compile"), has_mean=True),
        Column("CPU time", _cpu_ratio),
    ]
    rows = [row for row in _compared("float32") if row["vs_eager"] and row["vs_compile"]]
    return by_workload(newest(rows), columns)


def peers() -> str:
    """Returns the fastest of all others, and throughput and CPU time relative to it."""
    columns = [
        Column("fastest peer", lambda row: PEERS[row["best_peer"]]),
        Column("ratio", _figure("vs_best"), has_mean=True),
        Column("CPU time", _best_cpu_ratio),
    ]
    rows = [row for row in _compared("float32") if row["vs_best"]]
    return by_workload(newest(rows), columns, SMALL)


def _best_cpu_ratio(row: Row) -> str:
    mine, theirs = (float(row[f"{who}_cpu_ms_per_sample"]) for who in ("poptorch_emu", "best"))
    return f"{mine / theirs:.2f}"


def half_precision() -> str:
    """Returns the ratio of throughput to eager PyTorch, both in float16."""
    columns = [Column("eager", _figure("vs_eager"), has_mean=True)]
    rows = [row for row in _compared("float16") if row["vs_eager"]]
    return by_workload(newest(rows), columns)


def _compared(dtype: str) -> Iterable[Row]:
    for row in rows_of("speed"):
        if row["dtype"] == dtype and row["workload"] in TITLES:
            yield row


def machines() -> str:
    """Returns a line for each other comparison, with the range over the workloads of a machine."""
    of_workers = newest(rows_of("workers"))
    beside = newest(row for row in rows_of("workers") if row["beside_neighbour"])
    figures = {
        "Two workers over one": _ranges(of_workers, "two_workers_over_one"),
        "Beside a process that always computes, over alone": _ranges(beside, "beside_neighbour"),
        "Peak of memory, over eager": _ranges(newest(rows_of("memory")), "vs_eager"),
        "Encoder 4 × 512, over `torch.distributed.pipelining`": _pipelining(),
    }
    names = sorted({machine for cells in figures.values() for machine in cells})
    lines = [[title, *(cells.get(n, "") for n in names)] for title, cells in figures.items()]
    return _markdown([["Ratio", *names], *lines], "---")


def _ranges(runs: Runs, column: str) -> dict[str, str]:
    """Returns the lowest and the highest figure of each machine, with their workloads."""
    cells = {}
    for machine, rows in runs.items():
        ordered = sorted(rows.values(), key=lambda row: float(row[column]))
        ends = [f"{row[column]} ({TITLES[row['workload']]})" for row in (ordered[0], ordered[-1])]
        cells[machine] = f"{' to '.join(ends)}, {max(row['date'] for row in ordered)}"
    return cells


def _pipelining() -> dict[str, str]:
    return {
        machine: "{speed_ratio_median} ({speed_ratio_min} to {speed_ratio_max}), {date}".format(
            **row
        )
        for machine, rows in newest(rows_of("export"), "model").items()
        for row in rows.values()
        if row["model"] == "encoder 4x512"
    }


def levers() -> str:
    """Returns the ranked levers, their places, and the figures that are marked with a rank."""
    ranked: dict[int, list[Row]] = {}
    for row in rows_of("levers"):
        if row["rank"]:
            ranked.setdefault(int(row["rank"]), []).append(row)
    lines = [["Lever", "Where", "What it gave"]]
    for _, rows in sorted(ranked.items()):
        where = f"`{rows[0]['where']}`"
        lever = rows[0]["lever"]
        lines.append([lever[0].upper() + lever[1:], where, "; ".join(_gain(row) for row in rows)])
    return _markdown(lines, "---")


def _gain(row: Row) -> str:
    subject = TITLES.get(row["workload"], row["workload"])
    if row["ratio"]:
        return f"{subject} {row['ratio']} times as fast"
    before, after = (f"{float(row[which]):,.15g}" for which in ("before", "after"))
    of = " of CPU a sample" if row["quantity"] == "CPU time of a sample" else ""
    return f"{subject} {before} to {after} {row['unit']}{of}"


TABLES: dict[str, Callable[[], str]] = {
    "peers": peers,
    "speed": speed,
    "machines": machines,
    "half precision": half_precision,
    "levers": levers,
}


def current(document: str) -> str:
    """Returns `document` with all tables generated from the current files."""
    return marked_tables.with_tables(document, TABLES)


if __name__ == "__main__":
    marked_tables.run(DOCUMENT, "Writes the tables of docs/performance.md.", current)
