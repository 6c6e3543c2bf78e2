"""The parts of the update of an IPU, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from poptorch_emu.ir.graph import Graph, SinkKind, Source, SourceKind
from poptorch_emu.segments.segment import Register, Segment
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.update.formulas.optimizer_config import scalar_name
from poptorch_emu.update.recorded import WEIGHT


@dataclass(frozen=True)
class Gradient:
    """The accumulated gradient of a weight.

    Attributes:
        name: name of the weight.
        ipu: index of the IPU that accumulates the gradient and updates the weight.
        group: index of the weight's group in the optimiser.
        number: number of the weight among all parameters.
        is_by_rows: whether gradients are added row by row.
        stage: stage that computes the gradient.
    """

    name: str
    ipu: int
    group: int
    weight: VariableInfo
    number: int
    is_by_rows: bool = False
    stage: int = 0


@dataclass(frozen=True)
class PartLink:
    """A link from one part to another, which names both segments."""

    producer: str
    sources: tuple[int, ...]
    consumer: str
    targets: tuple[int, ...]


@dataclass
class Part:
    """One segment of an update.

    Attributes:
        runners: replicas that run the part: one for all, one for each group, or each replica.
        reductions: weights whose gradients the runners first add up over their group.
        exchanges: sums that the network adds up over all processes.
        scatters: sums that the network adds up, returning to each process the shards of its
            replicas.
        gathered_sums: sharded sums that the network gathers.
        gathers: variables whose shards the network sends to all processes.
        stores: variable that each register is stored in.
        sums: accumulator that each register is added to.
        sent: registers that links carry, besides those above.
        named: further registers that the user can anchor, by name.
        links: links from other parts to this one.
        is_sharded: whether the part runs on the runner's shard of each tensor.
        is_by_rows: whether the part runs only on the rows that received a gradient.
    """

    code: Segment
    runners: tuple[int, ...] = (0,)
    reductions: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()
    scatters: tuple[str, ...] = ()
    gathered_sums: tuple[str, ...] = ()
    gathers: tuple[str, ...] = ()
    stores: dict[int, str] = field(default_factory=dict)
    sums: dict[int, str] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    named: dict[str, int] = field(default_factory=dict)
    links: list[PartLink] = field(default_factory=list)
    is_sharded: bool = False
    is_by_rows: bool = False

    def receive(self, producer: Part, registers: Mapping[str, int]) -> dict[str, Register]:
        """Adds a link from another part; returns the registers that it fills, by name.

        A link without registers only makes this part wait for the other.
        """
        arrived = {name: Register(self.code.new_register()) for name in registers}
        sources, targets = tuple(registers.values()), tuple(r.index for r in arrived.values())
        self.links.append(PartLink(producer.code.name, sources, self.code.name, targets))
        producer.sent.update(sources)
        return arrived

    def finish(self, anchored: Iterable[int] = ()) -> None:
        """Sets where registers die.

        Args:
            anchored: registers that are also read at the end.
        """
        self.code.set_dying({*self.stores, *self.sums, *self.sent, *anchored})


@dataclass(frozen=True)
class Binding:
    """Binds the sources and results of an update's template to the program.

    Attributes:
        gradient: gradient of the weight that the template serves; `None` if the template already
            has the program's names.
        arrived: registers that links fill, by the name of the source.
        sums: accumulators besides that of the gradient, by their name in the template.
    """

    gradient: Gradient | None = None
    arrived: Mapping[str, Register] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, source: Source) -> Source | Register:
        """Returns the program's source or register for a source of the template."""
        if source.kind is SourceKind.LINK:
            return self.arrived[source.name]
        if source.kind is SourceKind.SCALAR:
            group = 0 if self.gradient is None else self.gradient.group
            return replace(source, name=scalar_name(source.name, group))
        if source.kind is SourceKind.VARIABLE:
            return replace(source, name=self._variable(source.name))
        if source.kind is SourceKind.GRADIENT and self.gradient is not None:
            return replace(source, name=self.sums.get(source.name, self.gradient.name))
        return source

    def inline(self, template: Graph, part: Part) -> dict[str, int]:
        """Adds the template to `part`; returns the registers that links carry, by name."""
        carried = {}
        for sink, register in part.code.inline(template, self).items():
            if sink.kind is SinkKind.VARIABLE:
                part.stores[register] = self._variable(sink.name)
            elif sink.kind is SinkKind.GRADIENT:
                part.sums[register] = self.sums[sink.name]
            else:
                carried[sink.name] = register
        return carried

    def _variable(self, name: str) -> str:
        if self.gradient is None:
            return name
        weight = self.gradient.name
        return weight if name == WEIGHT else state_variable(name, weight)


def state_variable(state: str, parameter: str) -> str:
    """Returns the name of an optimiser's state in PopART's form."""
    return f"{state}___{parameter}"
