"""Constants of the time model, with their meaning, evidence and source.

The constants of the chips are in `ipu.py`; the cycles of a vertex stand in the file that computes
with them. Only the constants in `FITTED` are fitted. The search for products has two more fitted
constants (`costs/product.py`). Sources are named in `docs/fidelity.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.machine.costs.cost import Evidence


@dataclass(frozen=True)
class TimeNumbers:
    """Constants of the time model. Links are those of Mk2 and Bow, in one direction.

    Attributes:
        step_cycles: cycles to start a training program on all tiles: syncs, launch, and bringing
            its operands from the layout of another pass. Fitted to the fixed part of C05.
        inference_step_cycles: cycles to start an inference program that is no product. An addition
            of ten numbers takes 330 cycles (measured on Bow, C02), the sync before its exchange 126
            and the sync before its vertices 20 (PopLibs). Assumed: in inference no operand changes
            its layout.
        host_bytes_per_second: rate of inputs for each replica. Fitted to C11 (real less synthetic
            data), C24 and C26.
        stream_begin_cycles: cycles to begin an input that the host did not prefetch. Measured by a
            counter on Bow.
        call_seconds: time of one call of a compiled model. Fitted to C13 in inference and C15.
        host_sync_seconds: time to end a stream copy, because the IPUs of a replica then wait for
            the host. 80,000 cycles of Bow, measured by a counter. Assumed: all streams of one
            direction share one such wait.
        output_bytes_per_second: rate from the device through the gateway. Measured (EfficientDet).
        pair_bytes_per_second: rate between the two IPUs of a pair, over 4 links. Source: PopLibs'
            tests.
        ladder_bytes_per_second: rate between other IPUs, over 2 links. Source: PopLibs' tests.
        link_sync_cycles: cycles of a sync between IPUs. Source: an independent compiler.
        ring_bytes_per_second: rate of an all-reduce over replicas of one IPU. Derived from the
            links.
        hop_seconds: latency of a step of a ring within one machine. Assumed.
        machine_hop_seconds: latency of a step of a ring over several machines. Fitted to ResNet-50
            on 16 and on 64 IPUs (C23), where 6.8 ms of an update are unexplained. No source gives
            this latency, so the 6.8 ms may have another cause.
        gateway_bytes_per_second: rate between the machines of two pods. Derived from 100 Gb/s
            ports.
        gateway_hop_seconds: latency of a step over gateways. Assumed.
        remote_bytes_per_second: rate of streaming memory for one IPU. Assumed to be the gateway's.
        machine_remote_bytes_per_second: rate of streaming memory for the four IPUs of a machine.
            Assumed.
        remote_sync_seconds: time to begin and end a transfer of streaming memory. Assumed to equal
            that of a stream copy, 160,000 cycles of Bow.
    """

    step_cycles: float = 1500.0
    inference_step_cycles: float = 476.0
    host_bytes_per_second: float = 1.5e9
    stream_begin_cycles: float = 80_000.0
    call_seconds: float = 0.55e-3
    host_sync_seconds: float = 43e-6
    output_bytes_per_second: float = 5.5e9
    pair_bytes_per_second: float = 58.4e9
    ladder_bytes_per_second: float = 29.2e9
    link_sync_cycles: float = 600.0
    ring_bytes_per_second: float = 58.4e9
    hop_seconds: float = 1e-6
    machine_hop_seconds: float = 28e-6
    gateway_bytes_per_second: float = 21e9
    gateway_hop_seconds: float = 5e-6
    remote_bytes_per_second: float = 5.5e9
    machine_remote_bytes_per_second: float = 20e9
    remote_sync_seconds: float = 86e-6


FITTED = ("step_cycles", "host_bytes_per_second", "call_seconds", "machine_hop_seconds")

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
    "machine_hop_seconds": Evidence.DERIVED,
    "gateway_bytes_per_second": Evidence.DERIVED,
    "gateway_hop_seconds": Evidence.ASSUMED,
    "remote_bytes_per_second": Evidence.ASSUMED,
    "machine_remote_bytes_per_second": Evidence.ASSUMED,
    "remote_sync_seconds": Evidence.ASSUMED,
    "inference_step_cycles": Evidence.ASSUMED,
    "host_sync_seconds": Evidence.MEASURED,
}

NUMBERS = TimeNumbers()
