"""Waits of a phase for streaming memory, where the phase before it computes meanwhile.

While a phase computes, tensors of the next phase arrive and those of the previous phase leave. In
parallel phases these two are on other IPUs. In serial phases they are on the same IPUs, so that I/O
tiles must transfer the tensors. A gap between the numbers of two phases is time in which nothing
computes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from poptorch_emu.schedule.schedule import Port


@dataclass(frozen=True)
class PhaseWork:
    """Work of a segment in its phase.

    Attributes:
        number: number of the phase.
        ipu: IPU that runs the segment.
        load_cycles: cycles to read its tensors from streaming memory before it begins.
        store_cycles: cycles to write its results to streaming memory after it has ended.
        compute_cycles: cycles of its computation.
    """

    number: int
    ipu: int
    load_cycles: float
    store_cycles: float
    compute_cycles: float


def waiting_cycles(work: Mapping[Port, PhaseWork]) -> dict[Port, float]:
    """Returns the cycles that each segment waits for streaming memory.

    A transfer that takes longer than the phase beside it delays the next phase. If no phase
    follows, the wait counts for the phase that stored.

    Args:
        work: work of all segments of a micro-batch.
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
            # The stores of a phase run while the next phase computes; without one, nothing hides
            # them. If the IPU also runs the phase after the next one, that phase counts the wait.
            following = _compute_cycles(work, of_phase.get(number + 1))
            leaving = sum(work[port].store_cycles for port in ports)
            if not following:
                waits[ports[0]] += leaving
            elif ipu not in of_phase.get(number + 2, {}):
                waits[ports[0]] += max(0.0, leaving - following)
    return waits


def _compute_cycles(work: Mapping[Port, PhaseWork], ipus: Mapping[int, list[Port]] | None) -> float:
    """Returns the compute cycles of the slowest IPU of a phase; 0 if there is no phase."""
    sums = (sum(work[port].compute_cycles for port in ports) for ports in (ipus or {}).values())
    return max(sums, default=0.0)
