"""How long a step of a model would take on a real system: a value.

`step_time.py` makes it; nothing here knows graphs or segments. Cycles are those of a tile's clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from poptorch_emu.config import TableConfig
from poptorch_emu.plan.time.step_parts import Group, Part
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Port, Schedule


@dataclass(frozen=True)
class OperationTime:
    """What one operation takes each time its segment runs.

    Attributes:
        segment: such as "forward 0"; what is recomputed stands in the backward segment.
        ipu: the user's number.
        name: of the operation, unlike any other of the graph.
        operator: such as "aten::mm".
        module: dotted path of the module that ran.
        source: "file:line" of the user's code.
        family: of operations that cost alike.
        is_recomputed: whether it ran in forward already.
        is_known: whether its family is modelled; else it counts as elementwise.
        is_rough: whether its family is modelled roughly.
        compute_cycles: of the vertices on the fullest tile.
        exchange_cycles: of data that come from other tiles.
        sync_cycles: of starting programs and waiting for all tiles.
        steps: programs that are started.
        evidence: of the weakest input.
        proportion_cycles: the part of its cycles that it would not take if the available memory
            proportion were not below the default.
    """

    segment: str
    ipu: int
    name: str
    operator: str
    module: str
    source: str
    family: str
    is_recomputed: bool
    is_known: bool
    is_rough: bool
    compute_cycles: float
    exchange_cycles: float
    sync_cycles: float
    steps: int
    evidence: str
    proportion_cycles: float = 0.0

    @property
    def cycles(self) -> float:
        """All of it."""
        return self.compute_cycles + self.exchange_cycles + self.sync_cycles

    @property
    def usual_share(self) -> float:
        """The share of its cycles that does not come of a low memory proportion."""
        return 1 - self.proportion_cycles / self.cycles if self.cycles else 1.0

    @property
    def is_collective(self) -> bool:
        """Whether its data come from other replicas, not from other tiles."""
        return self.family == "collective"


@dataclass(frozen=True)
class ActionTime:
    """Cycles that a stage takes for one micro-batch in one direction, in exclusive parts.

    Attributes:
        compute_cycles: of the vertices of operations that run for the first time.
        exchange_cycles: of the same operations, between the tiles.
        sync_cycles: of the same operations, to start programs.
        recompute_cycles: of all operations that run again, whatever they do.
        proportion_cycles: that operations lose because the user set a memory proportion below the
            default; not part of the four above.
        link_cycles: of data that come from other IPUs.
        stash_cycles: of copies into or out of a stash.
        remote_cycles: of reading and writing streaming memory.
        reduce_cycles: of parts that replicas exchange.
        input_cycles: of inputs that the IPU waits for.
        output_cycles: of outputs that the IPU waits for.
    """

    compute_cycles: float = 0.0
    exchange_cycles: float = 0.0
    sync_cycles: float = 0.0
    recompute_cycles: float = 0.0
    proportion_cycles: float = 0.0
    link_cycles: float = 0.0
    stash_cycles: float = 0.0
    remote_cycles: float = 0.0
    reduce_cycles: float = 0.0
    input_cycles: float = 0.0
    output_cycles: float = 0.0

    @property
    def operation_cycles(self) -> float:
        """Of the operations alone."""
        return (
            self.compute_cycles
            + self.exchange_cycles
            + self.sync_cycles
            + self.recompute_cycles
            + self.proportion_cycles
        )

    @property
    def host_cycles(self) -> float:
        """Of inputs and outputs that the IPU waits for."""
        return self.input_cycles + self.output_cycles

    @property
    def cycles(self) -> float:
        """All of it."""
        return (
            self.operation_cycles
            + self.link_cycles
            + self.stash_cycles
            + self.remote_cycles
            + self.reduce_cycles
            + self.host_cycles
        )


@dataclass(frozen=True)
class StageTime:
    """What a stage takes for one micro-batch.

    Attributes:
        stage: of forward, from 0.
        ipu: the user's number.
        blocks: of the user, that it runs.
        backward: without what is apart from it; nothing in inference.
        weights: of the part of backward that can wait, where a schedule has it apart.
        recompute: of computing activations again, likewise.
    """

    stage: int
    ipu: int
    blocks: tuple[str, ...]
    forward: ActionTime
    backward: ActionTime
    weights: ActionTime = ActionTime()
    recompute: ActionTime = ActionTime()

    def of(self, kind: Kind) -> ActionTime:
        """Returns what it takes for one kind of what a stage runs."""
        return {
            Kind.FORWARD: self.forward,
            Kind.RECOMPUTE: self.recompute,
            Kind.BACKWARD_WEIGHTS: self.weights,
        }.get(kind, self.backward)

    @property
    def parts(self) -> tuple[ActionTime, ...]:
        """All of it, in order."""
        return self.forward, self.recompute, self.backward, self.weights

    @property
    def cycles(self) -> float:
        """Of both directions."""
        return sum(part.cycles for part in self.parts)


def work_by_ipu(stages: Iterable[StageTime]) -> dict[int, float]:
    """Returns the cycles of all stages of each IPU, by the user's number."""
    work: dict[int, float] = {}
    for stage in stages:
        work[stage.ipu] = work.get(stage.ipu, 0.0) + stage.cycles
    return work


@dataclass(frozen=True)
class UpdateTime:
    """What an IPU takes for one update of its weights, in cycles.

    Attributes:
        reduce_cycles: of adding up gradients over the replicas, and handing weights out again.
        optimizer_cycles: of the optimiser's rule.
        remote_cycles: of what streaming memory gives and takes.
        wait_cycles: between the first of these and the others, where IPUs take turns.
    """

    ipu: int
    reduce_cycles: float = 0.0
    optimizer_cycles: float = 0.0
    remote_cycles: float = 0.0
    wait_cycles: float = 0.0

    @property
    def cycles(self) -> float:
        """All of it."""
        return self.reduce_cycles + self.wait_cycles + self.optimizer_cycles + self.remote_cycles


@dataclass(frozen=True)
class SpreadWeight:
    """A trained weight that several IPUs read, which a real system refuses.

    Attributes:
        name: of the parameter.
        ipus: the user's numbers of those that read it; the first holds it.
        num_bytes: of gradients that the first gets from the others for a micro-batch.
        cycles: that it waits for them.
        share: of the step that it waits for them.
    """

    name: str
    ipus: tuple[int, ...]
    num_bytes: int
    cycles: float
    share: float = 0.0


@dataclass(frozen=True)
class IpuTime:
    """The time of an IPU during one step.

    Attributes:
        ipu: the user's number.
        seconds: of each part; they add up to the step.
    """

    ipu: int
    seconds: Mapping[Part, float]

    def of(self, *parts: Part | Group) -> float:
        """Returns the seconds of some parts or groups together."""
        return math.fsum(s for part, s in self.seconds.items() if {part, part.group} & {*parts})

    @property
    def link_seconds(self) -> float:
        """Seconds of data from other IPUs."""
        return self.of(Part.LINK)

    @property
    def host_seconds(self) -> float:
        """Seconds of waiting for the host: its data, transfers and calls."""
        return self.of(Group.HOST)

    @property
    def bubble_seconds(self) -> float:
        """Seconds of waiting for other IPUs."""
        return self.of(Group.WAIT)

    @property
    def busy_seconds(self) -> float:
        """All but waiting."""
        return self.of(Group.WORK, Group.TRANSFER)

    @property
    def idle_seconds(self) -> float:
        """Waiting, for the host or for other IPUs."""
        return self.of(Group.HOST, Group.WAIT)


@dataclass(frozen=True)
class Grid:
    """How the stages take turns in one window: the micro-batches of one update, or of one call.

    Attributes:
        kind: the name of the schedule, such as "grouped", or of the table.
        ipu_of_stage: the index of the virtual IPU of each stage.
        level_of_stage: as a schedule has it.
        num_micro_batches: of the window.
        slot_cycles: of a pipeline cycle; 0 where each slot lasts as long as what it holds.
        table: where the schedule is one, in which IPUs wait for nothing but what they need.
        rule: that makes such a table for other numbers of micro-batches.
    """

    kind: str
    ipu_of_stage: tuple[int, ...]
    level_of_stage: tuple[int, ...]
    num_micro_batches: int
    is_training: bool
    slot_cycles: float
    table: Schedule | None = None
    rule: TableConfig | None = None


@dataclass(frozen=True)
class Event:
    """Something that an IPU does.

    Attributes:
        ipu: the user's number.
        action: as the schedule writes it: "2F0" is the forward of stage 2 for micro-batch 0.
        micro_batch: 0 for an update.
        begin_seconds: from the beginning of the window.
        end_seconds: likewise.
        kind: "host", "link", "remote", "recompute", "forward", "backward", "weights", "stash",
            "reduce", "optimizer".
    """

    ipu: int
    action: str
    micro_batch: int
    begin_seconds: float
    end_seconds: float
    kind: str


@dataclass(frozen=True)
class HostWork:
    """What the user's own program does while the device works (modelled).

    Attributes:
        items_per_second: rows that the loader yields; give this, or the next one.
        seconds_per_update: of Python and loading, for each update.
        is_measured: whether this computer was asked, rather than the user.
    """

    items_per_second: float = 0.0
    seconds_per_update: float = 0.0
    is_measured: bool = False

    def seconds(self, num_samples: int, num_updates: int) -> float:
        """Returns how long the host takes for a step."""
        loading = num_samples / self.items_per_second if self.items_per_second else 0.0
        return loading + num_updates * self.seconds_per_update


@dataclass(frozen=True)
class TimePlan:
    """How long one step (a call of the wrapped model) would take, and why (modelled).

    Attributes:
        system: its name.
        chip: name of the IPUs.
        clock_hz: of the tiles.
        num_replicas: copies of the model.
        step_seconds: of one call.
        window_seconds: of one update in training, of one call in inference; without the host's
            work for a call.
        num_windows: of one call.
        samples_per_step: rows of the inputs of one call, over all replicas.
        throughput: rows each second; `None` where too much is unknown to tell.
        cycles: of one call.
        spread_weights: trained weights that several IPUs read.
        unknown: operators without a model, with their largest share of a stage.
        rough: why the figures are rough, in words; empty if they are not.
        assumptions: what was taken for granted, in words.
        evidence: of the weakest input.
        stages: in their order.
        updates: one for each IPU in training.
        ipus: one for each.
        all_operations: of all segments, in the order in which they run.
    """

    system: str
    chip: str
    clock_hz: float
    num_replicas: int
    step_seconds: float
    window_seconds: float
    num_windows: int
    samples_per_step: int
    throughput: float | None
    cycles: int
    spread_weights: tuple[SpreadWeight, ...]
    unknown: tuple[tuple[str, float], ...]
    rough: tuple[str, ...]
    assumptions: tuple[str, ...]
    evidence: str
    stages: tuple[StageTime, ...]
    updates: tuple[UpdateTime, ...]
    ipus: tuple[IpuTime, ...]
    grid: Grid
    all_operations: tuple[OperationTime, ...]

    @property
    def rows_per_update(self) -> float:
        """Rows of one update of the weights, over all replicas; in inference there is none: 1."""
        return self.samples_per_step / self.num_windows if self.grid.is_training else 1.0

    @property
    def shares(self) -> dict[Part, float]:
        """The share of each part in the time of all IPUs; they add up to 1."""
        total = self.step_seconds * len(self.ipus)
        sums = {part: math.fsum(ipu.seconds[part] for ipu in self.ipus) for part in Part}
        return {part: seconds / total if total else 0.0 for part, seconds in sums.items()}

    def cycles_of(self, port: Port) -> float:
        """Returns what a kind of action of a stage takes."""
        return self.stages[port[1]].of(port[0]).cycles

    def operations(self, segment: str | None = None) -> Iterable[OperationTime]:
        """Returns the operations of a segment, or of all, the slowest first."""
        chosen = (op for op in self.all_operations if segment in (None, op.segment))
        return sorted(chosen, key=lambda operation: -operation.cycles)
