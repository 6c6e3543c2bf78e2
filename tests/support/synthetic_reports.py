"""Reports of any size for the page's tests, with invented figures."""

from __future__ import annotations

import random
from typing import Any

KIB = 1024
KINDS = ("forward", "recompute", "backward", "update", "link", "host", "all-reduce")
CLOCK_HZ = 1.85e9
NUM_IPUS = 4


def timeline(num_events: int) -> dict[str, Any]:
    """Returns a pipeline's timeline of about `num_events` events: forward and backward in turn."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("lane", "start", "duration", "kind", "label", "micro_batch", "bytes")
    }
    labels = [
        {"name": f"{kind} {stage}", "source": f"train.py:{20 + stage}"}
        for kind in ("forward", "backward", "update", "link")
        for stage in range(NUM_IPUS)
    ]
    forward, backward, window = 42_000, 97_000, 12

    def add(ipu: int, start: int, duration: int, kind: str, label: int, micro: int | None) -> None:
        num_bytes = 786_432 if kind == "link" else None
        row = (ipu, start, duration, KINDS.index(kind), label, micro, num_bytes)
        for name, value in zip(columns, row, strict=True):
            columns[name].append(value)

    begin, first_end = 0, 0
    while len(columns["lane"]) < num_events:
        free = [begin] * NUM_IPUS
        for micro in range(window):
            ready = begin
            for ipu in range(NUM_IPUS):
                start = max(ready, free[ipu])
                add(ipu, start, 3_000, "link", 12 + ipu, micro)
                add(ipu, start + 3_000, forward + 900 * ipu, "forward", ipu, micro)
                free[ipu] = ready = start + 3_000 + forward + 900 * ipu
        for micro in range(window):
            ready = begin
            for ipu in reversed(range(NUM_IPUS)):
                start = max(ready, free[ipu])
                add(ipu, start, backward // 3, "recompute", 4 + ipu, micro)
                start += backward // 3
                add(ipu, start, backward, "backward", 4 + ipu, micro)
                free[ipu] = ready = start + backward
        for ipu in range(NUM_IPUS):
            add(ipu, max(free), 60_000, "update", 8 + ipu, None)
        begin = max(free) + 70_000
        first_end = first_end or begin
    spans = [
        {"name": "fill", "start": 0, "end": 3 * forward},
        {"name": "main", "start": 3 * forward, "end": first_end - 3 * backward},
        {"name": "flush", "start": first_end - 3 * backward, "end": first_end},
    ]
    return {
        "key": "cycles",
        "title": "Virtual IPUs, in cycles",
        "note": "Predicted work of real IPUs, by the model of the machine.",
        "unit": "cycles",
        "lanes": [f"IPU {ipu}" for ipu in range(NUM_IPUS)],
        "kinds": list(KINDS),
        "labels": labels,
        "columns": columns,
        "spans": spans,
        "num_left_out": 0,
    }


def seconds_timeline() -> dict[str, Any]:
    """Returns a short timeline in seconds."""
    drawn = timeline(100)
    scale = 5e-8
    drawn["columns"]["start"] = [start * scale for start in drawn["columns"]["start"]]
    drawn["columns"]["duration"] = [time * scale for time in drawn["columns"]["duration"]]
    return {
        **drawn,
        "key": "seconds",
        "title": "Engine, in seconds",
        "note": "Times of the engine on this computer.",
        "unit": "seconds",
        "spans": [],
        "num_left_out": 1_200,
    }


def operations(num_operations: int, factor: float) -> dict[str, list[Any]]:
    """Returns the columns of the table of operations; every eleventh has no known cost."""
    families = {
        "aten::mm": "product",
        "aten::gelu": "elementwise",
        "aten::native_layer_norm": "norm",
    }
    draw = random.Random(7)
    rows = []
    for number in range(num_operations):
        operator = list(families)[number % 3]
        stage = number * NUM_IPUS // num_operations
        module = f"encoder.{number * 12 // num_operations}.mlp.{number}"
        is_known = number % 11 != 10
        cycles = round(draw.uniform(500, 9_000) * (6 if "mm" in operator else 1) * factor)
        rows.append(
            {
                "name": f"{module}: {operator.split('::')[1]}",
                "operator": operator,
                "segment": f"{'forward' if number % 2 else 'backward'} {stage}",
                "block": f"layer{number * 12 // num_operations}",
                "module": module,
                "family": families[operator],
                "ipu": stage,
                "cycles": cycles if is_known else None,
                "bytes": draw.randrange(2_048, 4 << 20) if is_known else None,
                "utilisation": draw.uniform(0.1, 0.7) if "mm" in operator else None,
                "is_recomputed": False,
                "source": f"model.py:{40 + number % 60}",
            }
        )
    return {name: [row[name] for row in rows] for name in rows[0]}


def fullest_tile(ipu: int, factor: float) -> dict[str, list[Any]]:
    """Returns the columns of the values on the fullest tile of an IPU, of three blocks."""
    draw = random.Random(ipu)
    rows: list[tuple[str, str, str, int, int | None]] = []
    for block in range(3 * ipu, 3 * ipu + 3):
        for name in ("attention.query", "attention.output", "mlp.first", "mlp.second"):
            for part in ("weight", "optimiser state", "accumulator"):
                size = round(draw.uniform(3, 9) * KIB * factor)
                prefix = "Accl1___" if "state" in part else ""
                title = f"{prefix}encoder.{block}.{name}.weight"
                rows.append((title, part, f"layer{block}", size, 1472 * size))
        size = round(draw.uniform(20, 60) * KIB * factor)
        title = f"encoder.{block}.mlp.first: gelu"
        rows.append((title, "live at the peak", f"layer{block}", size, 1472 * size))
    rows += [
        (f"encoder.{3 * ipu}.mlp.first: mm", "temporary at the peak", f"layer{3 * ipu}", 12_000, 1),
        ("<b>input 0", "live at the peak", "", 0, 300),
        ("vertex code", "vertex code", "", 14_000, 14_000 * 1472),
        ("uneven spread", "uneven spread", "", 40_000, None),
    ]
    names = ("name", "part", "block", "tile_bytes", "ipu_bytes")
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def memory(factor: float) -> dict[str, Any]:
    """Returns the memory of each IPU."""
    draw = random.Random(3)
    ipus = []
    for ipu in range(NUM_IPUS):
        live = [
            round((80 + 300 * min(step, 59 - step) / 30 + draw.uniform(0, 60)) * KIB * factor)
            for step in range(60)
        ]
        weights = [round(draw.uniform(90, 118) * KIB) for _ in range(1472)]
        code = [round(draw.uniform(18, 34) * KIB) for _ in range(1472)]
        activations = [round(live[29] * draw.uniform(0.4, 1.0)) for _ in range(1472)]
        ipus.append(
            {
                "ipu": ipu,
                "limit_bytes": 624 * KIB,
                "fullest_tile": fullest_tile(ipu, factor),
                "steps": {
                    "names": [f"encoder.{step // 5}: mm {step}" for step in range(60)],
                    "direction": [
                        "forward" if step < 24 else "recompute" if step < 32 else "backward"
                        for step in range(59)
                    ]
                    + ["update"],
                    "block": [f"layer{3 * ipu + step // 20}" for step in range(59)] + [""],
                    "always": [150 * KIB] * 60,
                    "live": live,
                    "largest": [[[0, live[step] // 2]] for step in range(60)],
                },
                "live_names": ["encoder.0: mm"],
                "peak": {
                    "name": "step 29: mm_29",
                    "tensors": [
                        {
                            "name": f"mm_{number}",
                            "kind": "activation" if number % 3 else "gradient",
                            "shape": "[8, 512, 768]",
                            "bytes": draw.randrange(500, 60_000),
                            "source": f"model.py:{number}",
                        }
                        for number in range(40)
                    ],
                },
                "tiles": {
                    name: [[num_bytes, 1] for num_bytes in held]
                    for name, held in (
                        ("weights", weights),
                        ("code", code),
                        ("activations", activations),
                    )
                },
                "categories": [
                    {"name": "weights", "bytes": 104 * KIB, "live": "always"},
                    {"name": "optimiser state", "bytes": 61 * KIB, "live": "always"},
                    {"name": "code", "bytes": 28 * KIB, "live": "always"},
                    {"name": "stashed activations", "bytes": 93 * KIB, "live": "always"},
                    {"name": "temporary", "bytes": 122 * KIB, "live": "not always"},
                ],
            }
        )
    return {
        "ipus": ipus,
        "fullest_note": "Each tensor is spread evenly.",
        "steps_note": "Bytes on the mean tile, over the steps of one window.",
        "ways_out": [
            {
                "name": "recompute layers 3 to 5", "saves_bytes": 88 * KIB,
                "then_bytes": 460 * KIB, "slower": 1.21, "text": "poptorch.recomputationCheckpoint",
            },
            {
                "name": "optimiser state off chip", "saves_bytes": 61 * KIB,
                "then_bytes": 490 * KIB, "slower": None, "text": "setOptimizerLocation",
            },
        ],
    }  # fmt: skip


def graph() -> dict[str, Any]:
    """Returns the stages of a pipeline and the values between them."""
    stages, edges = [], []
    for direction in ("forward", "backward"):
        for stage in range(NUM_IPUS):
            stages.append(
                {
                    "name": f"{direction} {stage}",
                    "direction": direction,
                    "stage": stage,
                    "ipu": stage,
                    "blocks": [f"layer{3 * stage + block}" for block in range(3)],
                    "cycles": 42_000 * (1 if direction == "forward" else 2),
                    "num_operations": 50,
                }
            )

    def edge(start: str, end: str, num_bytes: int) -> None:
        tensors = [{"name": "hidden", "shape": "[8, 512, 768]", "bytes": num_bytes}]
        edges.append({"from": start, "to": end, "bytes": num_bytes, "tensors": tensors})

    for stage in range(NUM_IPUS - 1):
        edge(f"forward {stage}", f"forward {stage + 1}", 6 << 20)
        edge(f"backward {stage + 1}", f"backward {stage}", 6 << 20)
    for stage in range(NUM_IPUS):
        edge(f"forward {stage}", f"backward {stage}", 21 << 20)
    return {"stages": stages, "edges": edges}


def report(
    name: str = "bert-base-pretraining",
    num_events: int = 400,
    factor: float = 1.0,
    num_operations: int = 240,
) -> dict[str, Any]:
    """Returns a report with all possible parts; `factor` scales its cycles and bytes."""
    parts = ("compute", "exchange", "sync", "link", "streaming", "update", "calls", "ramp")
    shares = (0.51, 0.12, 0.06, 0.03, 0.0, 0.08, 0.01, 0.19)
    ipus = [
        {
            "ipu": ipu,
            "fullest_tile_bytes": round((470 + 38 * ipu) * KIB * factor),
            "likely_tile_bytes": [(430 + 35 * ipu) * KIB * factor, (514 + 42 * ipu) * KIB * factor],
            "mean_tile_bytes": round(410 * KIB * factor),
            "limit_bytes": 624 * KIB,
            "parts": {
                part: share * 4e-3 * factor
                for part, share in zip(parts, shares, strict=True)
            },
        }
        for ipu in range(NUM_IPUS)
    ]  # fmt: skip
    return {
        "name": name,
        "mode": "training",
        "written": "2026-02-03 10:11:12",
        "versions": [["poptorch_emu", "1.0"], ["torch", "2.13.0"]],
        "machine": {
            "system": "IPU-POD4",
            "chip": "Mk2",
            "num_ipus": NUM_IPUS,
            "num_replicas": 1,
            "num_tiles": 1472,
            "clock_hz": CLOCK_HZ,
            "tile_bytes": 624 * KIB,
        },
        "facts": [["Schedule", "grouped"]],
        "fits": factor <= 1.05,
        "verdict": "yes" if factor <= 1.05 else "no",
        "speed": {
            "predicted_rows_per_second": 2_410.0 / factor,
            "likely_rows_per_second": [2_000.0 / factor, 2_900.0 / factor],
            "spread_weights": [[0.1, 0.0, 0.05], [0.05]],
            "predicted_step_seconds": 0.0398 * factor,
            "measured_rows_per_second": None,
            "measured_step_seconds": None,
            "rows_per_step": 96,
        },
        "bottleneck": "the compute of stage 3 on IPU 3",
        "insights": [
            {
                "kind": "warning",
                "text": "All IPUs wait for IPU 3, which takes 1.40 times the mean.",
                "code": "options.setExecutionStrategy(poptorch.PipelinedExecution(stages))",
            },
            {"kind": "good", "text": "The fullest tile has 40 KiB (6.4 %) left.", "code": None},
            {
                "kind": "note",
                "text": "19 % of the step is spent waiting for other IPUs.",
                "code": None,
            },
        ],
        "ipus": ipus,
        "timelines": [timeline(num_events), seconds_timeline()],
        "memory": memory(factor),
        "operations": operations(num_operations, factor),
        "graph": graph(),
        "options": [
            ["deviceIterations", "1", "1"],
            ["Training.gradientAccumulation", "12" if factor == 1 else "24", "1"],
        ],
        "log": [
            {"time": "10:11:12.345", "level": "INFO", "text": "Compiled in 3.2 s."},
            {"time": "10:11:13.345", "level": "WARNING", "text": "IPU 3 is nearly full."},
        ],
    }
