"""Hand-built training graphs of layers over stages, and an interpreter that runs their segments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from support.hand_graphs import HandGraph

from poptorch_emu.config import StrategyConfig, StrategyKind
from poptorch_emu.ir.graph import Graph, SourceKind
from poptorch_emu.ir.record import BlockPlace, NodeRecord, Phase
from poptorch_emu.schedule.partition import Partition, partition, rank
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.segments.segment import Register, Segment
from poptorch_emu.segments.segmented_graph import SegmentedGraph

aten = torch.ops.aten
ROWS, WIDTH = 2, 4


def layers(ipus: list[int], is_training: bool = True) -> Graph:
    """Returns tanh layers, one for each entry of `ipus`, with their gradients.

    The first layer's result is also added to the last one's, so that a value skips stages.
    """
    hand = HandGraph()
    x = hand.input(ROWS, WIDTH)
    weights = [hand.variable(f"w{index}", WIDTH, WIDTH) for index in range(len(ipus))]
    places = [BlockPlace(f"block{i}", stage=i, ipu=ipu) for i, ipu in enumerate(ipus)]
    inputs, results = [], []
    for place, weight in zip(places, weights, strict=True):
        hand.record = NodeRecord(place=place)
        inputs.append(x)
        x = hand.add(
            aten.tanh.default, hand.add(aten.mm.default, x, hand.add(aten.t.default, weight))
        )
        results.append(x)
    output = hand.add(aten.add.Tensor, x, results[0])
    gradients = {}
    if is_training:
        hand.record = NodeRecord(place=places[-1], phase=Phase.BACKWARD)
        skipped = grad = hand.add(aten.ones_like.default, output)
        for index in reversed(range(len(ipus))):
            hand.record = NodeRecord(place=places[index], phase=Phase.BACKWARD)
            if index == 0:
                grad = hand.add(aten.add.Tensor, grad, skipped)
            inner = hand.add(aten.tanh_backward.default, grad, results[index])
            transposed = hand.add(aten.t.default, inner)
            gradients[f"w{index}"] = hand.add(aten.mm.default, transposed, inputs[index])
            grad = hand.add(aten.mm.default, inner, weights[index])
    return hand.end(output, gradient=gradients)


def placed(graph: Graph) -> Partition:
    return partition(graph, StrategyConfig(StrategyKind.SHARDED))


def values_for(graph: Graph, seed: int = 0) -> dict[str, torch.Tensor]:
    """Returns a random value for each source except constants, by its text."""
    generator = torch.Generator().manual_seed(seed)
    return {
        str(node.meta["source"]): torch.randn(node.meta["val"].shape, generator=generator)
        for node in graph.sources
        if node.meta["source"].kind not in (SourceKind.CONSTANT, SourceKind.RNG)
    }


def run_segments(
    cut: SegmentedGraph, num_stages: int, given: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Runs one micro-batch, segment by segment, and returns the value of each sink by its text.

    Raises:
        AssertionError: a register is read before it is written, written twice, freed twice, or
            left at the end although no link sends it.
    """
    ends: dict[Port, dict[int, torch.Tensor]] = {}
    for port in sorted(cut.segments, key=lambda port: (rank(port, num_stages), port[0])):
        segment = cut.segments[port]
        alive = {register: given[str(source)] for source, register in segment.loads.items()}
        for (producer, consumer), transfer in cut.transfers.items():
            if consumer == port:
                for node in transfer:
                    sent = ends[producer][cut.segments[producer].registers[node]]
                    assert segment.registers[node] not in alive, f"{node} arrives twice"
                    alive[segment.registers[node]] = sent
        ends[port] = _run(segment, alive)
        kept = {segment.registers[node] for _, home, node in cut.results if home == port}
        for (producer, _), transfer in cut.transfers.items():
            if producer == port:
                kept |= {segment.registers[node] for node in transfer}
        assert set(ends[port]) == kept, f"{port} holds {set(ends[port]) - kept} for nobody"
    return {
        str(sink): ends[port][cut.segments[port].registers[node]]
        for sink, port, node in cut.results
    }


def _run(segment: Segment, alive: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    written = set(alive)
    for instruction in segment.instructions:
        result = instruction.target(*_filled(instruction.args, alive), **instruction.kwargs)
        values = [result] if isinstance(result, torch.Tensor) else list(result)
        for register, value in zip(instruction.outputs, values, strict=True):
            if register >= 0:
                assert register not in written, f"register {register} is written twice"
                written.add(register)
                alive[register] = value
        for register in instruction.dies:
            del alive[register]
    return alive


def _filled(value: Any, alive: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(value, Register):
        return alive[value.index]
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(item, alive) for item in value)
    return value
