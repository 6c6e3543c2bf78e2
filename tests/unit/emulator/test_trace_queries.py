"""The queries of the guide on a trace, against sums over the values that reports return.

Perfetto's trace processor is a program that no Python package contains. So the queries run in
SQLite, on which Perfetto's SQL is built, with tables of Perfetto's names; and in the program
itself if it is on the path.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.emulator_values import NAME, training
from support.trace_database import database_of

from poptorch_emu import emulator
from poptorch_emu.schedule.actions import parse_action

pytestmark = pytest.mark.feature("emulator.trace", fidelity="modelled")

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "timelines.md"
QUERIES = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emulator.trace(training(), tmp_path_factory.mktemp("trace") / "trace.json")


@pytest.fixture(params=["sqlite", "perfetto"])
def answers(request: pytest.FixtureRequest, trace: Path) -> list[Rows]:
    """Returns the rows of each query of the guide."""
    if request.param == "sqlite":
        database = database_of(json.loads(trace.read_text()))
        return [database.execute(query).fetchall() for query in QUERIES]
    api = pytest.importorskip("perfetto.trace_processor", reason="pip install perfetto")
    program = shutil.which("trace_processor_shell")
    if program is None:
        pytest.skip("perfetto's trace_processor_shell is not on the path; it is no Python package")
    config = api.TraceProcessorConfig(bin_path=program)
    with api.TraceProcessor(trace=str(trace), config=config) as processor:
        found = [list(processor.query(query)) for query in QUERIES]
    return [[tuple(vars(row).values()) for row in rows] for rows in found]


def test_queries_of_the_guide_then_answer_as_sums_over_events_and_operations(answers):
    waiting, bubble, blocks = answers
    events = emulator.timeline(training())
    end = max(event.end_seconds for event in events)
    busy: Counter[int] = Counter()
    free: defaultdict[int, float] = defaultdict(float)
    waits: Counter[tuple[str, str]] = Counter()
    for event in sorted(events, key=lambda one: (one.ipu, one.begin_seconds)):
        action = parse_action(event.action)
        is_work = event.kind in ("forward", "backward", "recompute")
        part = f"{event.kind} {action.stage}" if is_work else event.kind
        waits[f"IPU {event.ipu}", part] += event.begin_seconds - free[event.ipu]
        free[event.ipu] = event.end_seconds
        busy[event.ipu] += event.end_seconds - event.begin_seconds
    # The label of a transfer tells more than its kind, so it only contains it.
    for ipu, part, nanoseconds in waiting:
        same = [value for (one, kind), value in waits.items() if one == ipu and kind in part]
        assert any(nanoseconds == pytest.approx(1e9 * value, abs=20) for value in same), part
    assert waiting[0][2] == pytest.approx(1e9 * max(waits.values()), abs=20)
    assert dict(bubble) == {
        f"IPU {ipu}": pytest.approx(1 - seconds / end, abs=1e-4) for ipu, seconds in busy.items()
    }
    assert {name for name, _, _ in blocks} <= {f"{NAME} {index}" for index in range(4)}
    assert blocks == sorted(blocks, key=lambda row: -row[2])


def test_blocks_of_a_trace_then_last_as_long_as_their_operations(trace):
    database = database_of(json.loads(trace.read_text()))
    found = dict(
        database.execute(
            "select name, sum(dur) from slice where category = 'block' group by name"
        ).fetchall()
    )
    plan = emulator.estimate(training())
    view = emulator.summary(training()).view["operations"]
    runs = plan.grid.num_micro_batches
    wanted: Counter[str] = Counter()
    for block, cycles in zip(view["block"], view["cycles"], strict=True):
        wanted[block] += runs * (cycles or 0) / plan.clock_hz * 1e9
    assert found.keys() == {name for name in wanted if wanted[name]}
    for name, nanoseconds in found.items():
        assert nanoseconds == pytest.approx(wanted[name], rel=0.05)


def test_slices_of_a_pipeline_then_only_blocks_and_operations_lie_within_others(trace):
    database = database_of(json.loads(trace.read_text()))
    query = "select distinct category, depth from slice where depth > 0 and dur > 0"
    assert set(database.execute(query).fetchall()) == {("block", 1), ("cpu_op", 2)}
