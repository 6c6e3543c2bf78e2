"""The schedule of one window as a value, and the links that its actions need.

A window is the unit that the engine repeats: in training the micro-batches of one weight update and
the update, in inference all device iterations. The strategies that build schedules are elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from poptorch_emu.schedule.actions import Action, Kind

# One end of a link: the actions of one kind and one stage, over all micro-batches.
Port = tuple[Kind, int]
Link = tuple[Port, Port]
Cell = tuple[Action, ...]

# The actions that are a stage's backward for a micro-batch, if backward is a single action.
WHOLE = (Kind.BACKWARD,)
# The actions of a stage's backward in two halves. A whole backward then stands for both halves.
HALVES = (Kind.BACKWARD_INPUTS, Kind.BACKWARD_WEIGHTS)


@dataclass(frozen=True)
class Schedule:
    """The actions of every virtual IPU in every slot of one window.

    Attributes:
        ipu_of_stage: IPU of each forward stage. The IPUs are numbered 0 ... num_ipus - 1.
        num_micro_batches: gradient accumulation in training, device iterations in inference.
        is_training: whether the window has backward actions and ends with an update of each IPU.
        rows: table in which `rows[ipu][slot]` are the actions of that IPU in that slot, in order.
        level_of_stage: level of each stage; empty for a chain of stages. The stages of one level
            are independent of each other, and each level follows the one before.

    Raises:
        ValueError: the schedule has no stage or no micro-batch, an IPU in between is unused, `rows`
            is not a table with one row for each IPU, or a stage has no level.
    """

    ipu_of_stage: tuple[int, ...]
    num_micro_batches: int
    is_training: bool
    rows: tuple[tuple[Cell, ...], ...]
    level_of_stage: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuses rows that are no table of IPUs and slots; `legality` checks the actions."""
        used = sorted(set(self.ipu_of_stage))
        if not used or used != list(range(len(used))):
            raise ValueError(
                f"The stages are on IPUs {used}: expected at least one stage, and IPUs numbered "
                "0, 1, 2, ... without a gap. Renumber the IPUs that are used."
            )
        if self.num_micro_batches < 1:
            raise ValueError(
                f"num_micro_batches is {self.num_micro_batches}: a schedule needs at least 1."
            )
        lengths = [len(row) for row in self.rows]
        if len(lengths) != len(used) or len(set(lengths)) != 1:
            raise ValueError(
                f"The rows have {lengths} slots: expected {len(used)} rows, one for each IPU, all "
                "with the same number of slots. Fill up with empty slots."
            )
        if self.level_of_stage and len(self.level_of_stage) != len(self.ipu_of_stage):
            raise ValueError(
                f"{len(self.level_of_stage)} levels are given for {len(self.ipu_of_stage)} stages: "
                "expected one for each, or none for a chain."
            )

    @property
    def num_stages(self) -> int:
        """The number of forward stages."""
        return len(self.ipu_of_stage)

    @property
    def levels(self) -> tuple[int, ...]:
        """The level of each stage. In a chain of stages it is the number of the stage."""
        return self.level_of_stage or tuple(range(self.num_stages))

    @property
    def num_ipus(self) -> int:
        """The number of virtual IPUs."""
        return len(self.rows)

    @property
    def num_slots(self) -> int:
        """The number of slots: pipeline cycles, and in training one more for the update."""
        return len(self.rows[0])

    @cached_property
    def slot_of(self) -> dict[Action, int]:
        """The slot of each action."""
        return {
            action: slot for row in self.rows for slot, cell in enumerate(row) for action in cell
        }

    @cached_property
    def kinds(self) -> tuple[tuple[Kind, ...], ...]:
        """The kinds of actions of each stage for each micro-batch after its forward, in order."""
        if not self.is_training:
            return ((),) * self.num_stages
        found: list[set[Kind]] = [set() for _ in self.ipu_of_stage]
        for action in self.slot_of:
            if action.kind is not Kind.UPDATE and action.stage < self.num_stages:
                found[action.stage].add(action.kind)
        return tuple(
            tuple(kind for kind in (Kind.RECOMPUTE,) if kind in own)
            + (WHOLE if own.isdisjoint(HALVES) else HALVES)
            for own in found
        )

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The links between the stages, as (producer, consumer)."""
        return links(self.levels, self.is_training, self.kinds)

    def ports_of(self, action: Action) -> tuple[Port, ...]:
        """Returns the ports that an action runs, in order; none for an update.

        An action runs one port, unless it is a whole backward of a stage with two halves.
        """
        if action.kind is Kind.UPDATE:
            return ()
        is_cut = action.kind is Kind.BACKWARD and self.kinds[action.stage][-1] in HALVES
        kinds = HALVES if is_cut else (action.kind,)
        return tuple((kind, action.stage) for kind in kinds)

    @cached_property
    def needs(self) -> dict[Action, tuple[Action, ...]]:
        """For each action, the actions of the schedule whose results it uses."""
        producers: defaultdict[Port, list[Port]] = defaultdict(list)
        for producer, consumer in self.links:
            producers[consumer].append(producer)
        runs = {action: self.ports_of(action) for action in self.slot_of}
        at = {(port, a.micro_batch): a for a, ports in runs.items() for port in ports}
        found = {}
        for action, ports in runs.items():
            needed = [(p, action.micro_batch) for port in ports for p in producers[port]]
            found[action] = tuple(at[one] for one in needed if at.get(one, action) != action)
        return found

    def turns(self, action: Action) -> list[tuple[Port, int]]:
        """Returns the ports of an action, each with the micro-batch that the engine runs there.

        Every port processes the micro-batches in ascending order: its n-th action runs micro-batch
        n, whichever micro-batch the schedule names. This is legal whenever the schedule is, because
        n actions of a port then still come after n actions of each port that it needs. So links can
        be queues, and sums have the same order for every schedule.
        """
        turn_of = self._turn_of
        return [(port, turn_of[port, action.micro_batch]) for port in self.ports_of(action)]

    @cached_property
    def _turn_of(self) -> dict[tuple[Port, int], int]:
        num_had: Counter[Port] = Counter()
        found = {}
        for ipu in range(self.num_ipus):
            for action in self.actions(ipu):
                for port in self.ports_of(action):
                    found[port, action.micro_batch] = num_had[port]
                    num_had[port] += 1
        return found

    def slots(self, port: Port) -> list[int]:
        """Returns the slots of the micro-batches at `port`, ascending."""
        return self._slots[port]

    @cached_property
    def _slots(self) -> dict[Port, list[int]]:
        found: defaultdict[Port, list[int]] = defaultdict(list)
        for action, slot in self.slot_of.items():
            for port in self.ports_of(action):
                found[port].append(slot)
        return {port: sorted(slots) for port, slots in found.items()}

    def actions(self, ipu: int) -> tuple[Action, ...]:
        """Returns everything that `ipu` runs in one window, in order."""
        return tuple(action for cell in self.rows[ipu] for action in cell)


def links(
    levels: Sequence[int], is_training: bool, kinds: Sequence[tuple[Kind, ...]] = ()
) -> tuple[Link, ...]:
    """Returns the links of stages of these levels, as (producer, consumer).

    Activations go to the forwards of the next level and, in training, to the later actions of the
    same stage. Gradients of inputs go to the backwards of the level before.

    Args:
        levels: level of each stage.
        is_training: whether the stages have backward actions.
        kinds: kinds of actions of each stage after its forward; by default a whole backward.
    """
    forward, stages = Kind.FORWARD, range(len(levels))
    chain = [(s, t) for s in stages for t in stages if levels[t] == levels[s] + 1]
    result: list[Link] = [((forward, s), (forward, t)) for s, t in chain]
    if is_training:
        kinds = kinds or (WHOLE,) * len(levels)
        for stage in stages:
            own = [(kind, stage) for kind in (forward, *kinds[stage])]
            result += combinations(own, 2)
        gives = [
            (next(k for k in own if k is not Kind.RECOMPUTE), s) for s, own in enumerate(kinds)
        ]
        result += [(gives[t], gives[s]) for s, t in chain]
    return tuple(result)


def link_depth(schedule: Schedule, producer: Port, consumer: Port) -> int:
    """Returns the smallest FIFO depth that lets the slots of `schedule` run as planned.

    The FIFO carries one item for each micro-batch from `producer` to `consumer`. Within a slot all
    producers insert before any consumer removes, because the IPUs have no order inside a slot.

    With these depths no execution that follows each IPU's list can deadlock. Running slot by slot
    finds every item present and room for it, and if one valid order finishes, every order does.
    """
    removed = schedule.slots(consumer)
    inserted = schedule.slots(producer)
    return max(num - bisect_left(removed, slot) for num, slot in enumerate(inserted, start=1))


def link_depths(schedule: Schedule) -> dict[Link, int]:
    """Returns the depth of each link between the stages."""
    return {link: link_depth(schedule, *link) for link in schedule.links}
