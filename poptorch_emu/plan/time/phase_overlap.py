"""What a phase waits for streaming memory, where the phase before it computes in the meantime.

While a phase computes, the tensors of the next one come, and those of the one before it leave. In
parallel phases these two are on other IPUs; in serial phases they are on the same ones, so that
tiles set apart for I/O must carry them. Phases whose numbers do not follow each other leave time
between them, in which nothing computes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from poptorch_emu.schedule.schedule import Port


@dataclass(frozen=True)
class PhaseWork:
    """What a segment does in its phase.

    Attributes:
        number: of the phase.
        ipu: that runs it.
        load_cycles: of what comes from streaming memory before it begins.
        store_cycles: of what leaves when it has ended.
        compute_cycles: between the two.
    """

    number: int
    ipu: int
    load_cycles: float
    store_cycles: float
    compute_cycles: float


def waiting_cycles(work: Mapping[Port, PhaseWork]) -> dict[Port, float]:
    """Returns how long each segment waits for streaming memory.

    A wait for what could not be loaded or stored beside a phase is that of the phase behind it, or
    if there is none of the one that stored.

    Args:
        work: of all segments of a micro-batch.
    """
    of_phase: defaultdict[int, dict[int, list[Port]]] = defaultdict(lambda: defaultdict(list))
    for port, own in work.items():
        of_phase[own.number][own.ipu].append(port)
    waits = dict.fromkeys(work, 0.0)
    for number, ipus in of_phase.items():
        for ipu, ports in ipus.items():
            loads = sum(work[port].load_cycles for port in ports)
            before = of_phase.get(number - 2, {}).get(ipu, [])
            stores = sum(work[port].store_cycles for port in before)
            beside = _compute_cycles(work, of_phase.get(number - 1))
            waits[ports[0]] += max(0.0, loads + (stores if beside else 0.0) - beside)
            # What is stored behind the last phase, or behind one with a gap, hides behind nothing
            # unless something computes next; what comes two phases later has counted it above.
            following = _compute_cycles(work, of_phase.get(number + 1))
            leaving = sum(work[port].store_cycles for port in ports)
            if not following:
                waits[ports[0]] += leaving
            elif ipu not in of_phase.get(number + 2, {}):
                waits[ports[0]] += max(0.0, leaving - following)
    return waits


def _compute_cycles(work: Mapping[Port, PhaseWork], ipus: Mapping[int, list[Port]] | None) -> float:
    """Returns how long a phase computes, that of its slowest IPU; nothing if there is none."""
    sums = (sum(work[port].compute_cycles for port in ports) for ports in (ipus or {}).values())
    return max(sums, default=0.0)
