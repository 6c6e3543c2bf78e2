"""The plan of time of a step on a real system, as a value.

`step_time.py` computes the plan. This file knows no graphs. Cycles are cycles of a tile's clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from poptorch_emu.machine.spread import Figure, Subject
from poptorch_emu.plan.time.step_parts import Group, Part
from poptorch_emu.plan.time.window import Window
from poptorch_emu.printed.records import Record
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Port


@dataclass(frozen=True)
class OperationTime(Record):
    """The time of one operation each time its segment runs.

    Attributes:
        segment: name of the segment, such as "forward 0". Recomputation is in a backward segment.
        ipu: the user's number of the IPU.
        name: title of the operation, unique in the graph.
        operator: name of the operator, such as "aten::mm".
        module: dotted path of the module that ran.
        source: line of the user's code, as "file:line".
        family: family of operations with the same formula of costs.
        is_recomputed: whether the operation also ran in forward.
        is_known: whether the family is modelled; other operations are costed as elementwise ones.
        is_rough: whether the model of the family is only rough.
        compute_cycles: cycles of the vertices on the fullest tile.
        exchange_cycles: cycles to receive data from other tiles.
        sync_cycles: cycles to start programs and to wait for all tiles.
        steps: number of programs that are started.
        evidence: kind of evidence of the weakest number in the model of this operation.
        proportion_cycles: cycles that are lost because the available memory proportion is below the
            default; a part of the three kinds of cycles.
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
        """Sum of compute, exchange and sync."""
        return self.compute_cycles + self.exchange_cycles + self.sync_cycles

    @property
    def usual_share(self) -> float:
        """The share of the cycles that is not lost to a low memory proportion."""
        return 1 - self.proportion_cycles / self.cycles if self.cycles else 1.0

    @property
    def is_uncertain(self) -> bool:
        """Whether nothing measured supports the model of the operation."""
        return self.is_rough or not self.is_known

    @property
    def is_collective(self) -> bool:
        """Whether the data come from other replicas, not from other tiles."""
        return self.family == "collective"


@dataclass(frozen=True)
class ActionTime(Record):
    """Cycles that a stage takes for one micro-batch in one direction, in exclusive parts.

    Attributes:
        compute_cycles: cycles of vertices, in operations that run for the first time.
        exchange_cycles: cycles of exchange between tiles, in the same operations.
        sync_cycles: cycles to start programs, in the same operations.
        recompute_cycles: cycles of all kinds, in operations that run again for backward.
        proportion_cycles: cycles that operations lose because the user set a memory proportion
            below the default. The four attributes above do not contain them.
        link_cycles: cycles to receive data from other IPUs.
        stash_cycles: cycles of copies to and from stashes.
        remote_cycles: cycles to read and write streaming memory.
        reduce_cycles: cycles to exchange parts of tensors between replicas.
        input_cycles: cycles that the IPU waits for inputs.
        output_cycles: cycles that the IPU waits for transfers of outputs.
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
        """Cycles of the operations alone."""
        first = self.compute_cycles + self.exchange_cycles + self.sync_cycles
        return first + self.recompute_cycles + self.proportion_cycles

    @property
    def host_cycles(self) -> float:
        """Cycles that the IPU waits for inputs and outputs."""
        return self.input_cycles + self.output_cycles

    @property
    def cycles(self) -> float:
        """Sum of all attributes."""
        return math.fsum(vars(self).values())


@dataclass(frozen=True)
class StageTime(Record):
    """The time of a stage for one micro-batch.

    Attributes:
        stage: number of the forward stage, from 0.
        ipu: the user's number of the IPU.
        blocks: names of the user's blocks in the stage.
        backward: time of backward without `weights` and `recompute`; zero in inference.
        weights: time of the gradients of weights, if the schedule has separate actions for them.
        recompute: time of recomputation, if the schedule has separate actions for it.
    """

    stage: int
    ipu: int
    blocks: tuple[str, ...]
    forward: ActionTime
    backward: ActionTime
    weights: ActionTime = ActionTime()
    recompute: ActionTime = ActionTime()

    def of(self, kind: Kind) -> ActionTime:
        """Returns the time of one kind of action of the stage."""
        return {
            Kind.FORWARD: self.forward,
            Kind.RECOMPUTE: self.recompute,
            Kind.BACKWARD_WEIGHTS: self.weights,
        }.get(kind, self.backward)

    @property
    def parts(self) -> tuple[ActionTime, ...]:
        """The times of all kinds of actions, in order."""
        return self.forward, self.recompute, self.backward, self.weights

    @property
    def cycles(self) -> float:
        """Sum of the cycles of all kinds of actions."""
        return sum(part.cycles for part in self.parts)


@dataclass(frozen=True)
class UpdateTime(Record):
    """The time of one update of an IPU's weights, in cycles.

    Attributes:
        reduce_cycles: cycles to add gradients over the replicas, and to gather divided weights.
        optimizer_cycles: cycles of the optimiser's rule.
        remote_cycles: cycles to read and write streaming memory.
        wait_cycles: cycles between the reduction and the rule, while other IPUs have their turn.
    """

    ipu: int
    reduce_cycles: float = 0.0
    optimizer_cycles: float = 0.0
    remote_cycles: float = 0.0
    wait_cycles: float = 0.0

    @property
    def cycles(self) -> float:
        """Sum of all attributes."""
        return self.reduce_cycles + self.wait_cycles + self.optimizer_cycles + self.remote_cycles


@dataclass(frozen=True)
class SpreadWeight(Record):
    """A trained weight that several IPUs read, which a real system refuses.

    Attributes:
        name: name of the parameter.
        ipus: the user's numbers of the IPUs that read the weight; the first one holds it.
        num_bytes: bytes of gradients that the first IPU receives from the others for a micro-batch.
        cycles: cycles that the first IPU waits for them.
        share: share of the step that the first IPU waits for them.
    """

    name: str
    ipus: tuple[int, ...]
    num_bytes: int
    cycles: float
    share: float = 0.0


@dataclass(frozen=True)
class IpuTime(Record):
    """The time of an IPU during one step.

    Attributes:
        ipu: the user's number of the IPU.
        seconds: seconds of each part; they add up to the step.
    """

    ipu: int
    seconds: Mapping[Part, float]

    def of(self, *parts: Part | Group) -> float:
        """Returns the sum of the seconds of some parts or groups."""
        return math.fsum(s for part, s in self.seconds.items() if {part, part.group} & {*parts})

    @property
    def host_seconds(self) -> float:
        """Seconds of waiting for the host: its data, transfers and calls."""
        return self.of(Group.HOST)

    @property
    def bubble_seconds(self) -> float:
        """Seconds of waiting for other IPUs."""
        return self.of(Group.WAIT)


@dataclass(frozen=True)
class Event(Record):
    """One bar of the timeline: a part of an action on one IPU.

    Attributes:
        ipu: the user's number of the IPU.
        action: text of the action: "2F0" is the forward of stage 2 for micro-batch 0.
        micro_batch: number of the micro-batch; 0 for an update.
        begin_seconds: seconds from the beginning of the window to the beginning of the event.
        end_seconds: seconds from the beginning of the window to the end of the event.
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
class HostWork(Record):
    """Work of the user's own program while the device computes (modelled).

    Attributes:
        items_per_second: rows that the loader yields per second; give this or `seconds_per_update`.
        seconds_per_update: seconds of Python and loading for each update.
        is_measured: whether the numbers were measured on this computer.
    """

    items_per_second: float = 0.0
    seconds_per_update: float = 0.0
    is_measured: bool = False

    def seconds(self, num_samples: int, num_updates: int) -> float:
        """Returns the seconds of the host's work for a step."""
        loading = num_samples / self.items_per_second if self.items_per_second else 0.0
        return loading + num_updates * self.seconds_per_update


_SUBJECTS = {
    Subject.WORK: (Part.COMPUTE, Part.EXCHANGE, Part.RECOMPUTE, Part.PROPORTION),
    Subject.START: (Part.SYNC,),
    Subject.MOVE: (Part.LINK, Part.STREAMING, Part.ALL_REDUCE, Part.UPDATE),
    Subject.HOST: (Part.INPUT, Part.OUTPUT, Part.CALL, Part.DATA),
}
SUBJECT_OF_PART = {part: subject for subject, parts in _SUBJECTS.items() for part in parts}


@dataclass(frozen=True)
class TimePlan:
    """The duration of one step (a call of the wrapped model), and its parts (modelled).

    Attributes:
        system: name of the system.
        chip: name of the chip.
        clock_hz: clock of the tiles, in Hz.
        num_replicas: number of replicas.
        step_seconds: seconds of one call.
        window_seconds: seconds of one update in training, or of one call in inference, without the
            host's work for a call.
        num_windows: number of windows in one call.
        samples_per_step: rows of the inputs of one call, over all replicas.
        throughput: rows per second; None if operators without a model take too large a share.
        cycles: cycles of one call.
        spread_weights: trained weights that several IPUs read.
        unknown: operators without a model, each with its largest share of a segment.
        rough: sentences that say why the figures are rough; empty if they are not.
        assumptions: sentences that state the assumptions of the plan.
        evidence: kind of evidence of the weakest number in the plan.
        stages: time of each stage, in order.
        updates: time of the update on each IPU; empty in inference.
        ipus: time of each IPU, divided into parts.
        all_operations: operations of all segments, in running order.
        is_unusual: whether the system consists of PCIe cards, or the replicas occupy more than one
            pod. Few figures of such systems are published.
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
    grid: Window
    all_operations: tuple[OperationTime, ...]
    is_unusual: bool = False

    @property
    def rows_per_update(self) -> float:
        """Rows of one update, over all replicas. In inference, which has no updates, it is 1."""
        return self.samples_per_step / self.num_windows if self.grid.is_training else 1.0

    @property
    def shares(self) -> dict[Part, float]:
        """Share of each part in the time of all IPUs; the shares add up to 1."""
        total = self.step_seconds * len(self.ipus)
        sums = {part: math.fsum(ipu.seconds[part] for ipu in self.ipus) for part in Part}
        return {part: seconds / total if total else 0.0 for part, seconds in sums.items()}

    @property
    def amounts(self) -> dict[Subject, float]:
        """Seconds of a step by subject, over all IPUs; waiting for other IPUs counts for none."""
        seconds = {
            part: math.fsum(ipu.seconds[part] for ipu in self.ipus) for part in SUBJECT_OF_PART
        }
        found = dict.fromkeys(SUBJECT_OF_PART.values(), 0.0)
        for part, subject in SUBJECT_OF_PART.items():
            found[subject] += seconds[part]
        rough = math.fsum(op.cycles for op in self.all_operations if op.is_uncertain)
        total = math.fsum(op.cycles for op in self.all_operations)
        of_rough = {
            subject: found[subject] * rough / total if total else 0.0
            for subject in (Subject.WORK, Subject.START)
        }
        found = {subject: s - of_rough.get(subject, 0.0) for subject, s in found.items()}
        found[Subject.ROUGH] = math.fsum(of_rough.values())
        return found | ({Subject.SYSTEM: math.fsum(found.values())} if self.is_unusual else {})

    @property
    def speed(self) -> Figure | None:
        """The throughput with its interval; None if the throughput is not known."""
        return None if self.throughput is None else Figure(self.throughput, self.amounts)

    def cycles_of(self, port: Port) -> float:
        """Returns the cycles of the actions of a stage at `port`."""
        return self.stages[port[1]].of(port[0]).cycles

    def operations(self, segment: str | None = None) -> Iterable[OperationTime]:
        """Returns the operations of a segment, or of all, the slowest first."""
        chosen = (op for op in self.all_operations if segment in (None, op.segment))
        return sorted(chosen, key=lambda operation: -operation.cycles)
