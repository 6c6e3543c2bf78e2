"""Predicted times of a call's inputs and outputs on a real system, from a plan of time."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from poptorch_emu.config import CompileConfig
from poptorch_emu.enums import OutputMode
from poptorch_emu.ir.graph import SinkKind, SourceKind, source_of
from poptorch_emu.machine.streams import output_seconds
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.tiles.tile_liveness import machine_bytes
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.plan.time.timeline import timeline
from poptorch_emu.report.latency import Spans
from poptorch_emu.schedule.actions import Kind, parse_action
from poptorch_emu.schedule.schedule import Port

_NS_PER_SECOND = 1e9


@dataclass(frozen=True)
class _Moment:
    """The times of one action, in seconds from the beginning of its window.

    Attributes:
        received: time at which all inputs from the host have arrived.
    """

    begin: float
    received: float
    end: float


def modelled_spans(
    plan: TimePlan, inventory: Inventory, inputs: Spans, outputs: Spans
) -> tuple[Spans, Spans]:
    """Returns the spans of the inputs and outputs of a call that begins at time 0.

    An input crosses at the beginning of the first stage that reads it, and an output at the end of
    the stage that computes it. All replicas do the same at the same time. Overlapped transfers
    count as finished when a stage begins.

    Args:
        plan: plan of the call's time.
        inventory: inventory of the same model.
        inputs: measured spans of the inputs, which give the number of pieces.
        outputs: measured spans of the outputs, for the same purpose.
    """
    transfers = _Transfers(plan, inventory)
    return (
        [transfers.input_spans(index, len(spans)) for index, spans in enumerate(inputs)],
        [transfers.output_spans(index, len(spans)) for index, spans in enumerate(outputs)],
    )


class _Transfers:
    def __init__(self, plan: TimePlan, inventory: Inventory) -> None:
        self._plan = plan
        self._config = inventory.config
        self._num_micro_batches = plan.num_windows * plan.grid.num_micro_batches
        self._moments = _moments(plan)
        self._input_ports = _input_ports(inventory)
        self._outputs = {
            sink.name: (port, output_seconds(machine_bytes(node)))
            for sink, port, node in inventory.cut.results
            if sink.kind is SinkKind.OUTPUT
        }

    def input_spans(self, index: int, count: int) -> list[tuple[int, int]]:
        """Returns the spans of all pieces of an input."""
        port = self._input_ports.get(str(index), (Kind.FORWARD, 0))
        found = []
        for number in _numbers_of_pieces(range(self._num_micro_batches), count):
            begin, moment = self._at(port, number)
            found.append(_in_nanoseconds(begin + moment.begin, begin + moment.received))
        return found

    def output_spans(self, index: int, count: int) -> list[tuple[int, int]]:
        """Returns the spans of all pieces of an output."""
        last = Kind.FORWARD, len(self._plan.grid.ipu_of_stage) - 1
        port, seconds = self._outputs.get(str(index), (last, 0.0))
        is_in_action = self._config.output_mode is OutputMode.All
        found = []
        numbers = _returned(self._config, self._num_micro_batches)
        for number in _numbers_of_pieces(numbers, count):
            begin, moment = self._at(port, number)
            # If outputs return from every micro-batch, their transfer is a part of the action.
            leaves = begin + moment.end - (seconds if is_in_action else 0.0)
            found.append(_in_nanoseconds(leaves, leaves + seconds))
        return found

    def _at(self, port: Port, number: int) -> tuple[float, _Moment]:
        """Returns the beginning of a micro-batch's window, and its action in that window."""
        window, micro_batch = divmod(number, self._plan.grid.num_micro_batches)
        return window * self._plan.window_seconds, _moment(self._moments[port], micro_batch)


def _moments(plan: TimePlan) -> dict[Port, dict[int, _Moment]]:
    """Returns the times of a window's actions, except those that the timeline leaves out."""
    found: defaultdict[Port, dict[int, _Moment]] = defaultdict(dict)
    for event in timeline(plan):
        action = parse_action(event.action)
        of_port = found[action.kind, action.stage]
        before = of_port.get(action.micro_batch)
        begin = event.begin_seconds if before is None else before.begin
        received = begin if before is None else before.received
        if event.kind == "host" and before is None:
            received = event.end_seconds
        of_port[action.micro_batch] = _Moment(begin, received, event.end_seconds)
    return found


def _moment(of_port: dict[int, _Moment], micro_batch: int) -> _Moment:
    """Returns the times of one action, interpolated if the timeline leaves it out."""
    if not of_port:
        return _Moment(0.0, 0.0, 0.0)  # A stage without operations takes no time.
    if micro_batch in of_port:
        return of_port[micro_batch]
    known = sorted(of_port)
    place = bisect_left(known, micro_batch)
    first, last = known[place - 1], known[place]
    part = (micro_batch - first) / (last - first)
    ends = [vars(of_port[number]).values() for number in (first, last)]
    return _Moment(*((1 - part) * a + part * b for a, b in zip(*ends, strict=True)))


def _input_ports(inventory: Inventory) -> dict[str, Port]:
    """Returns the first segment that reads each input."""
    found: dict[str, Port] = {}
    for node in inventory.graph.sources:
        source = source_of(node)
        if source.kind is SourceKind.INPUT:
            ports = [port for port, s in inventory.cut.segments.items() if source in s.loads]
            if ports:
                found[source.name] = min(ports, key=inventory.placed.rank)
    return found


def _returned(config: CompileConfig, num_micro_batches: int) -> Sequence[int]:
    """Returns the micro-batches after which outputs leave the device."""
    if config.output_mode is OutputMode.All:
        return range(num_micro_batches)
    if config.output_mode is OutputMode.EveryN:
        period = config.output_return_period
        return [n for n in range(num_micro_batches) if (_iteration(config, n) + 1) % period == 0]
    return [num_micro_batches - 1]


def _iteration(config: CompileConfig, number: int) -> int:
    """Returns the device iteration of a micro-batch."""
    return number // config.gradient_accumulation if config.is_training else number


def _numbers_of_pieces(numbers: Sequence[int], count: int) -> list[int]:
    """Returns the micro-batch of each of `count` pieces, spread evenly over `numbers`."""
    return [numbers[piece * len(numbers) // count] for piece in range(count)]


def _in_nanoseconds(begin: float, end: float) -> tuple[int, int]:
    return round(begin * _NS_PER_SECOND), round(end * _NS_PER_SECOND)
