"""The fixed numbers of the model of time, in one place: what they are, and who says so.

Those of the chips are in `ipu.py`, the cycles of a vertex beside what computes with them. Fitted
here are only those of `FITTED`; the search for products has two fitted constants of its own
(`costs/product.py`). Sources are named in `docs/fidelity.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.machine.costs.cost import Evidence


@dataclass(frozen=True)
class TimeNumbers:
    """What a model of time computes with; links are those of Mk2 and Bow, one way.

    Attributes:
        step_cycles: of starting a program of training on all tiles: syncs, launch, and bringing its
            operands from the layout that another pass left them in. Fitted: the fixed part of C05.
            What other rows would take is in the document.
        inference_step_cycles: of one of an inference that is no product. An addition of ten numbers
            takes 330 (measured on Bow, C02), the sync before its exchange 126 and that before its
            vertices 20 (PopLibs). Assumed: that no operand changes its layout where no other pass
            lays it out.
        host_bytes_per_second: of inputs, for each replica. Fitted: C11 (real less synthetic data),
            C24, C26.
        stream_begin_cycles: of an input that the host did not make ready before; measured by a
            counter on Bow.
        call_seconds: of one call of a compiled model. Fitted: C13 in inference, C15.
        host_sync_seconds: of the end of a stream copy, for which the IPUs of a replica meet the
            host: 80,000 cycles of Bow, measured by a counter. That all streams of one direction
            cross together is assumed.
        output_bytes_per_second: from the device through the gateway; measured (EfficientDet).
        pair_bytes_per_second: between the two IPUs of a pair, 4 links; read in PopLibs' tests.
        ladder_bytes_per_second: between others, 2 links; likewise.
        link_sync_cycles: of a sync between IPUs; read in an independent compiler.
        ring_bytes_per_second: of an all-reduce over replicas of one IPU; derived from the links.
        hop_seconds: of each step of a ring in a machine; assumed.
        machine_hop_seconds: of each step of a ring over several machines. Fitted: of ResNet-50 on
            16 and on 64 IPUs (C23) 6.8 ms of an update are left. Nothing else supports it: no
            source tells how long such a step takes, and what is left may have another cause.
        gateway_bytes_per_second: between the machines of two pods; derived from 100 Gb/s ports.
        gateway_hop_seconds: assumed.
        remote_bytes_per_second: of streaming memory, for an IPU; assumed: the gateway's.
        machine_remote_bytes_per_second: of it, for the four IPUs of a machine; assumed.
        remote_sync_seconds: of the beginning and the end of a transfer of it; assumed to be those
            of a stream copy that was measured, 160,000 cycles of Bow.
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
