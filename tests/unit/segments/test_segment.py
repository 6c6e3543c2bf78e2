"""Registers of straight-line code: written once, read while live, and freed after the last use."""

from __future__ import annotations

import operator

import torch
from support.hand_graphs import HandGraph
from torch._subclasses.fake_tensor import FakeTensorMode

from poptorch_emu.ir.control import FOR_LOOP
from poptorch_emu.ir.graph import Sink, SinkKind, Source, SourceKind
from poptorch_emu.segments.segment import Register, Segment

aten = torch.ops.aten
OUTPUT = Sink(SinkKind.OUTPUT, "0")


def bound(source: Source) -> Source:
    return source


def test_source_then_is_loaded_once() -> None:
    segment, source = Segment("s"), Source(SourceKind.INPUT, "0")
    assert segment.load(source) == segment.load(source) == 0
    assert segment.load(Source(SourceKind.INPUT, "1")) == 1
    assert segment.num_registers == 2


def test_graph_when_added_twice_then_has_registers_of_its_own_and_shares_loads() -> None:
    hand = HandGraph()
    graph = hand.end(hand.add(aten.mul.Tensor, hand.input(2), hand.variable("w", 2)))
    segment = Segment("s")
    first = segment.inline(graph, bound)[OUTPUT]
    second = segment.inline(graph, bound)[OUTPUT]
    assert first != second
    assert len(segment.loads) == 2
    assert segment.num_registers == 4
    assert [list(i.reads) for i in segment.instructions] == [[0, 1], [0, 1]]
    assert [list(values.values())[-1] for values in segment.inlined] == [first, second]


def test_graph_when_bound_to_a_register_then_reads_that() -> None:
    hand = HandGraph()
    graph = hand.end(hand.add(aten.sin.default, hand.input(2)))
    segment = Segment("s")
    filled = segment.new_register()
    segment.inline(graph, lambda source: Register(filled))
    assert not segment.loads
    assert list(segment.instructions[0].reads) == [filled]


def test_register_then_dies_at_its_last_use_unless_it_is_kept() -> None:
    hand = HandGraph()
    x = hand.input(2)
    y = hand.add(aten.sin.default, x)
    parts = hand.add(aten.split.Tensor, hand.add(aten.add.Tensor, y, x), 1)
    graph = hand.end(hand.add(operator.getitem, parts, 1), y)
    segment = Segment("s")
    results = segment.inline(graph, bound)
    segment.set_dying(set(results.values()))
    sine, addition, split = segment.instructions
    assert sine.dies == []
    assert addition.dies == [segment.loads[Source(SourceKind.INPUT, "0")]]
    assert split.dies == addition.outputs
    # Nobody uses the first part.
    assert split.outputs == [-1, results[OUTPUT]]


def test_lists_of_tensors_then_are_read_too() -> None:
    hand = HandGraph()
    graph = hand.end(hand.add(aten.cat.default, [hand.input(2), hand.input(2)], 0))
    segment = Segment("s")
    segment.inline(graph, bound)
    assert list(segment.instructions[0].reads) == [0, 1]


def test_loop_then_its_body_has_registers_of_its_own() -> None:
    mode = FakeTensorMode()
    outer, body = HandGraph(mode), HandGraph(mode)
    body.input(4)  # Parameter 0 is not read.
    captured, iteration = body.input(4), body.iteration()
    body.end(body.add(aten.add.Tensor, captured, iteration))
    x, y = outer.input(4), outer.input(4)
    loop = outer.add(FOR_LOOP, "body", 3, False, [x], [], [y], [])
    graph = outer.end(outer.add(operator.getitem, loop, 0))
    graph.regions["body"] = body.graph
    segment = Segment("s", graph.regions)
    segment.inline(graph, bound)
    (instruction,) = segment.instructions
    (code,) = instruction.bodies
    assert code.parameters == [code.code.loads[Source(SourceKind.INPUT, "0")], 1]
    assert code.iteration == code.code.loads[Source(SourceKind.ITERATION)]
    assert code.results == code.code.instructions[-1].outputs
    assert list(instruction.reads) == [0, 1]
