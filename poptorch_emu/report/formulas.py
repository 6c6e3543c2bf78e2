"""Figures of a plan with the formula behind each, and the numbers of the plan in the formula."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from poptorch_emu.compile.planner import Planned
from poptorch_emu.machine.links import POD_IPUS, all_reduce_seconds, hop_seconds, ring_rate
from poptorch_emu.machine.tile_memory import FULLEST_PER_MEAN, FULLEST_REST_BYTES
from poptorch_emu.machine.time_numbers import NUMBERS
from poptorch_emu.plan.tiles.tile_stash import Stashes
from poptorch_emu.plan.time.step_parts import Part
from poptorch_emu.plan.time.time_plan import TimePlan, UpdateTime
from poptorch_emu.plan.time.update_durations import summed_bytes
from poptorch_emu.schedule.free_run import unit_lengths
from poptorch_emu.schedule.make import ScheduleKind

_NAME = re.compile(r"[a-z_]+\d*")
_NUMBER = re.compile(r"(\d+)$")
_SIGNS = {"*": "×", "-": "−", "/": "/", "+": "+"}
# Steps of each unit: factor and name, the largest first.
_STEPS: Mapping[str, Sequence[tuple[float, str]]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1, "B/s")),
}
# Relative difference of two floating-point numbers that are the same figure.
_SAME = 1e-9


@dataclass(frozen=True)
class Formula:
    """A figure of a plan, and the formula that gives it.

    Attributes:
        name: name of the figure.
        place: IPU that the figure belongs to; "" if it belongs to all.
        expression: the formula as Python arithmetic over the names in `terms`.
        terms: value of each name.
        value: the figure, as the plan has it.
        unit: unit of the figure: "s", "B", "share", "rows/s" or the noun of a number.
        units: unit of each term that is not a plain number.
    """

    name: str
    expression: str
    terms: Mapping[str, float]
    value: float
    unit: str = ""
    units: Mapping[str, str] = field(default_factory=dict)
    place: str = ""

    @property
    def result(self) -> str:
        """The figure as text."""
        return quantity(self.value, self.unit)

    @property
    def words(self) -> str:
        """The formula with the names of its terms, such as "micro-batches + 2 × stages − 2"."""
        return self._with(lambda name: _NUMBER.sub(r" \1", name).replace("micro_b", "micro-b"))

    @property
    def numbers(self) -> str:
        """The formula with the numbers of the plan, and its result."""
        terms = self._with(lambda name: quantity(self.terms[name], self.units.get(name, "")))
        return f"{terms} = {self.result}"

    def _with(self, text_of: Callable[[str], str]) -> str:
        signs = re.sub(r" [*/+-] ", lambda sign: f" {_SIGNS[sign[0].strip()]} ", self.expression)
        return _NAME.sub(lambda name: text_of(name[0]).replace("_", " "), signs)


def quantity(value: float, unit: str = "") -> str:
    """Returns a number with three digits and its unit, such as "1.25 ms"."""
    if unit == "share":
        return f"{value:.1%}".replace("%", " %")
    if unit in _STEPS:
        steps = _STEPS[unit]
        scale, name = next((step for step in steps if abs(value) >= step[0]), steps[-1])
        return f"{_digits(value / scale)} {name}"
    return f"{_digits(value)} {unit}".strip()


def _digits(value: float) -> str:
    is_whole = value == int(value)
    return f"{value:,.0f}" if is_whole or abs(value) >= 100 else f"{value:.3g}"


def formulas_of(plan: Planned) -> list[Formula]:
    """Returns the formulas of a plan: its slots, its time, its memory, and its reduction."""
    time = plan.time
    found = [_slots(time), _window(time), *_bubbles(time), *_step(time), _fullest(plan)]
    found += [_stash(plan)] if time.grid.is_training else []
    found += [_reduction(plan)] if time.updates and time.num_replicas > 1 else []
    return found


def _slots(time: TimePlan) -> Formula:
    grid = time.grid
    terms: dict[str, float] = {"micro_batches": grid.num_micro_batches, "stages": grid.num_stages}
    if grid.table is not None:
        rows = [[bool(cell) for cell in row[: grid.num_slots]] for row in grid.table.rows]
        most = max(map(sum, rows))
        terms = {"filled": most, "empty": grid.num_slots - most}
        expression = "filled + empty"
    elif grid.level_of_stage or not grid.is_pipelined:
        terms["each"] = grid.num_slots / grid.num_micro_batches
        expression = "micro_batches * each"
    elif not grid.is_training:
        expression = "micro_batches + stages - 1"
    elif grid.kind is ScheduleKind.INTERLEAVED:
        expression = "2 * micro_batches + 2 * stages - 2"
    else:
        expression = "micro_batches + 2 * stages - 2"
    return Formula("Slots of the schedule", expression, terms, grid.num_slots, "slots")


def _window(time: TimePlan) -> Formula:
    """Returns the time of all micro-batches: slots of equal length, or the way of an IPU."""
    grid, clock = time.grid, time.clock_hz
    seconds = grid.cycles(time.cycles_of) / clock
    name = "Time of all micro-batches"
    if grid.slot_cycles:
        terms = {"slots": float(grid.num_slots), "slot": grid.slot_cycles / clock}
        return Formula(name, "slots * slot", terms, seconds, "s", {"slot": "s"})
    work = max(grid.busy_cycles(time.cycles_of)) / clock
    terms = {"work": work, "waiting": seconds - work}
    return Formula(name, "work + waiting", terms, seconds, "s", dict.fromkeys(terms, "s"))


def _bubbles(time: TimePlan) -> Iterator[Formula]:
    grid, clock = time.grid, time.clock_hz
    if len(time.ipus) < 2:
        return
    work = {f"work{i}": cycles / clock for i, cycles in enumerate(grid.busy_cycles(time.cycles_of))}
    seconds = grid.cycles(time.cycles_of) / clock
    yield Formula(
        "Bubble",
        f"1 - ({' + '.join(work)}) / (ipus * time)",
        {**work, "ipus": len(work), "time": seconds},
        grid.bubble(time.cycles_of),
        "share",
        {**dict.fromkeys(work, "s"), "time": "s"},
    )
    count, stages, alike = grid.num_micro_batches, grid.num_stages, grid.bubble(unit_lengths)
    for text, lost in (("stages - 1", stages - 1), ("2 * stages - 2", 2 * stages - 2)):
        if math.isclose(lost / (count + lost), alike, rel_tol=_SAME):
            expression = f"({text}) / (micro_batches + {text})"
            terms = {"micro_batches": count, "stages": stages}
            yield Formula("Bubble if stages took equally long", expression, terms, alike, "share")
            return


def _step(time: TimePlan) -> Iterator[Formula]:
    grid, clock = time.grid, time.clock_hz
    ipu = time.ipus[0]
    terms: dict[str, float] = {"time": grid.cycles(time.cycles_of) / clock}
    inner, name = "time", "Time of a call"
    if time.updates:
        terms["update"] = max(update.cycles for update in time.updates) / clock
        inner = "(time + update)"
    terms["start"] = ipu.seconds[Part.CALL]
    units = dict.fromkeys([*terms, "data"], "s")
    expression = f"{inner} + start"
    if time.num_windows > 1:
        terms["windows"], expression = time.num_windows, f"windows * {inner} + start"
    if ipu.seconds[Part.DATA]:
        terms["data"] = ipu.seconds[Part.DATA]
        expression += " + data"
    yield Formula(name, expression, terms, time.step_seconds, "s", units)
    if time.throughput is not None:
        terms = {"rows": float(time.samples_per_step), "call": time.step_seconds}
        yield Formula("Throughput", "rows / call", terms, time.throughput, "rows/s", {"call": "s"})


def _fullest(plan: Planned) -> Formula:
    tiles = plan.tiles
    fullest = max(tiles.ipus, key=tiles.largest_bytes)
    return Formula(
        "Fullest tile",
        f"{FULLEST_PER_MEAN} * mean + rest",
        {"mean": tiles.mean_bytes(fullest), "rest": FULLEST_REST_BYTES},
        tiles.largest_bytes(fullest),
        "B",
        {"mean": "B", "rest": "B"},
        f"IPU {fullest.ipu}",
    )


def _stash(plan: Planned) -> Formula:
    """Returns the largest stash of an IPU: micro-batches that wait, and the bytes of one."""
    stashes, ids = Stashes(plan.inventory), plan.inventory.placed.ipu_ids
    ipu = max(range(len(ids)), key=stashes.always_live_bytes)
    terms: dict[str, float] = {}
    products = []
    sizes = sorted(stashes.sizes(ipu).items())
    for number, (depth, num_bytes) in enumerate(sizes, 1):
        of = "" if len(sizes) == 1 else str(number)
        terms |= {f"waiting{of}": depth, f"bytes{of}": num_bytes}
        products.append(f"waiting{of} * bytes{of}")
    units = {name: "B" for name in terms if name.startswith("bytes")}
    return Formula(
        "Largest stash",
        " + ".join(products) or "0",
        terms,
        stashes.always_live_bytes(ipu),
        "B",
        units,
        f"IPU {ids[ipu]}",
    )


def _reduction(plan: Planned) -> Formula:
    """Returns the time in which replicas add up the gradients of the IPU that takes longest."""
    time = plan.time
    slowest: UpdateTime = max(time.updates, key=lambda update: update.reduce_cycles)
    seconds = slowest.reduce_cycles / time.clock_hz
    ipu = plan.inventory.placed.ipu_ids.index(slowest.ipu)
    num_bytes, replicas = summed_bytes(plan.inventory, ipu), time.num_replicas
    per_replica = 1 + max(plan.inventory.placed.ipu_ids)
    total = replicas * per_replica
    name, place = "Sum of gradients over replicas", f"IPU {slowest.ipu}"
    if not num_bytes or total > POD_IPUS:
        terms, units = {"exchange": seconds}, {"exchange": "s"}
        return Formula(name, "exchange", terms, seconds, "s", units, place)
    rate, hop = ring_rate(total, per_replica, NUMBERS), hop_seconds(total, NUMBERS)
    terms = {"replicas": float(replicas), "bytes": float(num_bytes), "rate": rate, "hop": hop}
    terms["adding"] = seconds - all_reduce_seconds(num_bytes, replicas, per_replica)
    units = {"bytes": "B", "rate": "B/s", "hop": "s", "adding": "s"}
    expression = "2 * (replicas - 1) * (bytes / replicas / rate + hop) + adding"
    return Formula(name, expression, terms, seconds, "s", units, place)
