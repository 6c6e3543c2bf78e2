"""Constants of the time model, each one record with its value, unit, evidence and source.

The constants of the chips are in `ipu.py`; the cycles of a vertex are in the file that computes
with them. The search for products has two more fitted constants (`costs/product.py`). Sources are
named in `docs/fidelity.md`, whose table of constants lists these records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from poptorch_emu.machine.costs.cost import Evidence


@dataclass(frozen=True)
class Constant:
    """Record of a constant.

    Attributes:
        unit: unit of the value.
        evidence: kind of the source.
        meaning: definition, and the source or the reason of an assumption.
        fitted_to: published rows that the value was fitted to; empty if it is not fitted.
    """

    unit: str
    evidence: Evidence
    meaning: str
    fitted_to: tuple[str, ...] = ()


def _constant(value: float, unit: str, evidence: Evidence, meaning: str, *fitted_to: str) -> Any:
    record = Constant(unit, evidence, meaning, fitted_to)
    return field(default=value, metadata={"record": record})


@dataclass(frozen=True)
class TimeNumbers:
    """Constants of the time model. Links are those of Mk2 and Bow, in one direction.

    The record of each one is in `CONSTANTS`.
    """

    step_cycles: float = _constant(
        1500.0,
        "cycles",
        Evidence.DERIVED,
        "start of a training program on all tiles: syncs, launch, and copying its "
        "operands from the layout of another pass",
        "C05",
    )
    inference_step_cycles: float = _constant(
        476.0,
        "cycles",
        Evidence.ASSUMED,
        "start of an inference program that is no product: 330 for an addition of ten "
        "numbers (measured, C02), the syncs before exchange and vertices 126 and 20 "
        "(PopLibs); assumed: in inference no operand changes its layout",
    )
    host_bytes_per_second: float = _constant(
        1.5e9,
        "B/s",
        Evidence.DERIVED,
        "inputs of a replica (C11: real less synthetic data)",
        "C11",
        "C24",
        "C26",
    )
    stream_begin_cycles: float = _constant(
        80_000.0,
        "cycles",
        Evidence.MEASURED,
        "begin of an input that the host did not prefetch (C07)",
    )
    call_seconds: float = _constant(
        0.55e-3,
        "s",
        Evidence.DERIVED,
        "call of a compiled model",
        "C13 inference",
        "C15",
    )
    host_sync_seconds: float = _constant(
        43e-6,
        "s",
        Evidence.MEASURED,
        "end of a stream copy, when the IPUs of a replica wait for the host: 80,000 "
        "cycles of Bow (C07); assumed: all streams of one direction share one such wait",
    )
    output_bytes_per_second: float = _constant(
        5.5e9,
        "B/s",
        Evidence.MEASURED,
        "results through the gateway (EfficientDet)",
    )
    pair_bytes_per_second: float = _constant(
        58.4e9,
        "B/s",
        Evidence.SOURCE,
        "between the two IPUs of a pair, over 4 links (PopLibs' tests)",
    )
    ladder_bytes_per_second: float = _constant(
        29.2e9,
        "B/s",
        Evidence.SOURCE,
        "between other IPUs, over 2 links (PopLibs' tests)",
    )
    link_sync_cycles: float = _constant(
        600.0,
        "cycles",
        Evidence.INDEPENDENT,
        "sync between IPUs (an independent compiler)",
    )
    ring_bytes_per_second: float = _constant(
        58.4e9,
        "B/s",
        Evidence.DERIVED,
        "all-reduce over replicas of one IPU, from the links",
    )
    hop_seconds: float = _constant(
        1e-6,
        "s",
        Evidence.ASSUMED,
        "step of a ring within one machine",
    )
    machine_hop_seconds: float = _constant(
        28e-6,
        "s",
        Evidence.DERIVED,
        "step of a ring over several machines; no source gives this latency, so the 6.8 "
        "ms of an update of C23 may have another cause",
        "C23",
    )
    gateway_bytes_per_second: float = _constant(
        21e9,
        "B/s",
        Evidence.DERIVED,
        "between the machines of two pods, from ports of 100 Gb/s",
    )
    gateway_hop_seconds: float = _constant(
        5e-6,
        "s",
        Evidence.ASSUMED,
        "step of a ring over gateways",
    )
    remote_bytes_per_second: float = _constant(
        5.5e9,
        "B/s",
        Evidence.ASSUMED,
        "streaming memory of one IPU: the rate of the gateway",
    )
    machine_remote_bytes_per_second: float = _constant(
        20e9,
        "B/s",
        Evidence.ASSUMED,
        "streaming memory of the four IPUs of a machine",
    )
    remote_sync_seconds: float = _constant(
        86e-6,
        "s",
        Evidence.ASSUMED,
        "begin and end of a transfer of streaming memory: those of a stream copy, "
        "160,000 cycles of Bow",
    )


CONSTANTS: dict[str, Constant] = {
    each.name: each.metadata["record"] for each in fields(TimeNumbers)
}
FITTED = tuple(name for name, constant in CONSTANTS.items() if constant.fitted_to)
EVIDENCE = {name: constant.evidence for name, constant in CONSTANTS.items()}

NUMBERS = TimeNumbers()
