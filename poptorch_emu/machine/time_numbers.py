"""The fixed numbers of the model of time, in one place: what they are, and who says so.

Those of the chips are in `ipu.py`, the cycles of a vertex beside what computes with them. Fitted
here are only `step_cycles`, `host_bytes_per_second` and `call_seconds`; the search for products has
two fitted constants of its own (`costs/product.py`). Sources are named in `docs/fidelity.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.machine.costs.cost import Evidence


@dataclass(frozen=True)
class TimeNumbers:
    """What a model of time computes with; links are those of Mk2 and Bow, one way.

    Attributes:
        step_cycles: of starting a program on all tiles: syncs, launch, setting up an exchange.
            Fitted: the fixed part of C05; C17 to C22 and C39, C40 alone give 1,300 to 1,600.
        host_bytes_per_second: of inputs, for each replica. Fitted: C11 (real less synthetic data),
            C24, C26.
        stream_begin_cycles: of an input that the host did not make ready before; measured by a
            counter on Bow.
        call_seconds: of one call of a compiled model. Fitted: C13, C15.
        output_bytes_per_second: from the device through the gateway; measured (EfficientDet).
        pair_bytes_per_second: between the two IPUs of a pair, 4 links; read in PopLibs' tests.
        ladder_bytes_per_second: between others, 2 links; likewise.
        link_sync_cycles: of a sync between IPUs; read in an independent compiler.
        ring_bytes_per_second: of an all-reduce over replicas of one IPU; derived from the links.
        hop_seconds: of each step of a ring; assumed.
        gateway_bytes_per_second: between the machines of two pods; derived from 100 Gb/s ports.
        gateway_hop_seconds: assumed.
        remote_bytes_per_second: of streaming memory, for an IPU; assumed: the gateway's.
        machine_remote_bytes_per_second: of it, for the four IPUs of a machine; assumed.
        remote_cycles: of starting a transfer of it; assumed.
    """

    step_cycles: float = 1500.0
    host_bytes_per_second: float = 1.5e9
    stream_begin_cycles: float = 80_000.0
    call_seconds: float = 0.8e-3
    output_bytes_per_second: float = 5.5e9
    pair_bytes_per_second: float = 58.4e9
    ladder_bytes_per_second: float = 29.2e9
    link_sync_cycles: float = 600.0
    ring_bytes_per_second: float = 58.4e9
    hop_seconds: float = 1e-6
    gateway_bytes_per_second: float = 21e9
    gateway_hop_seconds: float = 5e-6
    remote_bytes_per_second: float = 5.5e9
    machine_remote_bytes_per_second: float = 20e9
    remote_cycles: float = 2000.0


FITTED = ("step_cycles", "host_bytes_per_second", "call_seconds")

# What each fitted number and each assumption is where it is switched off, to see what it does.
WITHOUT = {"step_cycles": 0.0, "host_bytes_per_second": 1e15, "call_seconds": 0.0}

EVIDENCE = {
    "step_cycles": Evidence.DERIVED,
    "host_bytes_per_second": Evidence.DERIVED,
    "call_seconds": Evidence.DERIVED,
    "stream_begin_cycles": Evidence.MEASURED,
    "output_bytes_per_second": Evidence.MEASURED,
    "pair_bytes_per_second": Evidence.SOURCE,
    "ladder_bytes_per_second": Evidence.SOURCE,
    "link_sync_cycles": Evidence.INDEPENDENT,
    "ring_bytes_per_second": Evidence.DERIVED,
    "hop_seconds": Evidence.ASSUMED,
    "gateway_bytes_per_second": Evidence.DERIVED,
    "gateway_hop_seconds": Evidence.ASSUMED,
    "remote_bytes_per_second": Evidence.ASSUMED,
    "machine_remote_bytes_per_second": Evidence.ASSUMED,
    "remote_cycles": Evidence.ASSUMED,
}

NUMBERS = TimeNumbers()
