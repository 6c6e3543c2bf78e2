"""Trained weights that several IPUs read, and the cost of sending their gradients to one IPU."""

from __future__ import annotations

from collections import defaultdict

from poptorch_emu.ir.graph import SinkKind, SourceKind
from poptorch_emu.machine.links import copy_cycles
from poptorch_emu.plan.time.durations import Durations
from poptorch_emu.plan.time.time_plan import SpreadWeight


def spread_weights(durations: Durations) -> tuple[SpreadWeight, ...]:
    """Returns the trained weights that forward reads on several IPUs, the most costly first."""
    inventory = durations.inventory
    homes = {s.name: port for s, port, _ in inventory.cut.results if s.kind is SinkKind.GRADIENT}
    ipus: defaultdict[str, set[int]] = defaultdict(set)
    for port, segment in inventory.cut.segments.items():
        for source in segment.loads:
            if source.kind is SourceKind.VARIABLE and source.name in homes:
                ipus[source.name].add(durations.user_ipu(port))
    found = []
    for name, readers in ipus.items():
        if len(readers) < 2:
            continue
        home = durations.user_ipu(homes[name])
        shape = tuple(inventory.variables[name].shape)
        num_bytes, cycles = 0, 0.0
        for link in inventory.links:
            producer, consumer = map(durations.user_ipu, (link.producer, link.consumer))
            if producer == consumer or consumer != home:
                continue
            values = (node.meta["val"] for node in link.nodes)
            sent = sum(v.nbytes for v in values if tuple(v.shape) == shape)
            num_bytes += sent
            if sent:
                cycles += copy_cycles(
                    sent, producer, home, durations.system.chip, durations.numbers
                )
        others = sorted(readers - {home})
        found.append(SpreadWeight(name, (home, *others), num_bytes, cycles))
    return tuple(sorted(found, key=lambda weight: -weight.cycles))
