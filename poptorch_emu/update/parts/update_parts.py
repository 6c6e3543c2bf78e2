"""The parts that the update of an IPU is made of, as values."""

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
    """The gradient of a weight, where it is accumulated.

    Attributes:
        name: of the weight.
        ipu: that accumulates, and therefore updates.
        group: index of the optimiser's group.
        number: of the weight among all parameters.
        is_by_rows: whether single rows are added to the sum.
        stage: that computes it.
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
    """Values that one part sends to another, by the names of their segments."""

    producer: str
    sources: tuple[int, ...]
    consumer: str
    targets: tuple[int, ...]


@dataclass
class Part:
    """One segment of an update.

    Attributes:
        runners: the replicas that run it: one for all, one for each group, or each.
        reductions: weights whose gradients the runners add up over their group first.
        exchanges: sums that the network adds up over all processes.
        scatters: sums of which it gives each process the parts of its replicas.
        gathered_sums: sums that are cut, which it puts together.
        gathers: variables whose parts it hands on to all processes.
        stores: the variable that a register becomes.
        sums: the accumulator that a register is added to.
        sent: registers that links carry, besides those above.
        named: further registers that can be anchored, by the name for that.
        links: what other parts send to this one.
        is_sharded: whether tensors stand for the runner's part of them.
        is_by_rows: whether weights and gradients stand for the rows that gradients were added to.
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
        """Plans that another part sends its registers; returns where they arrive, by name.

        Without any, this part just waits for the other.
        """
        arrived = {name: Register(self.code.new_register()) for name in registers}
        sources, targets = tuple(registers.values()), tuple(r.index for r in arrived.values())
        self.links.append(PartLink(producer.code.name, sources, self.code.name, targets))
        producer.sent.update(sources)
        return arrived

    def finish(self, anchored: Iterable[int] = ()) -> None:
        """Notes where registers die, but for those that are read at the end."""
        self.code.set_dying({*self.stores, *self.sums, *self.sent, *anchored})


@dataclass(frozen=True)
class Binding:
    """Names the sources and results of an update's template in the program.

    Attributes:
        gradient: of the weight that the template serves; `None` where it has the program's names.
        arrived: registers that links fill, by the name of the source.
        sums: accumulators besides that of the gradient, by their name in the template.
    """

    gradient: Gradient | None = None
    arrived: Mapping[str, Register] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, source: Source) -> Source | Register:
        """Returns what stands in the program for a source of the template."""
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
        """Adds the template to `part`; returns the registers of what links are to carry."""
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
    """Returns the name of an optimiser's state, in the form in which PopART names it."""
    return f"{state}___{parameter}"
