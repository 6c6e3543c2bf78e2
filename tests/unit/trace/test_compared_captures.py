"""Texts of captures, which are equal only where the captures compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.hand_graphs import HandGraph
from torch import fx

from poptorch_emu.ir.graph import Graph
from poptorch_emu.trace.capture.compared_captures import computed

aten = torch.ops.aten


def scaled(factor: float, count: int = 1) -> Graph:
    """Returns a graph that multiplies its input by a constant, `count` times."""
    hand = HandGraph()
    value, constant = hand.input(2), hand.constant("factor", torch.tensor([factor, 1.0]))
    for _ in range(count):
        value = hand.add(aten.mul.Tensor, value, constant)
    return hand.end(value)


def texts(graph: Graph, describe: Callable[[fx.Node], str | None]) -> list[tuple[object, ...]]:
    return list(computed(graph, (), describe))


@pytest.mark.parametrize("other, is_equal", [(2.0, True), (3.0, False)])
def test_captures_when_constants_are_described_then_compares_them(
    other: float, is_equal: bool
) -> None:
    both = [
        texts(graph, lambda node, graph=graph: str(graph.constants["factor"]))
        for graph in (scaled(2.0), scaled(other))
    ]
    assert (both[0] == both[1]) is is_equal


def test_captures_when_a_value_is_unknown_then_never_are_equal() -> None:
    graph = scaled(2.0, count=8)
    assert all(texts(graph, lambda _: None) != texts(graph, lambda _: None) for _ in range(20))


def test_captures_when_one_has_an_operation_more_then_differ() -> None:
    assert texts(scaled(2.0), lambda _: "") != texts(scaled(2.0, count=2), lambda _: "")


def test_captures_when_an_empty_tensor_is_read_then_its_numbers_do_not_count() -> None:
    def read(is_filled: bool) -> Graph:
        hand = HandGraph()
        value, empty = hand.input(2), hand.add(aten.empty.memory_format, [2], device="meta")
        if is_filled:
            empty = hand.add(aten.fill_.Scalar, empty, 1.0)
        return hand.end(hand.add(aten.add.Tensor, value, empty))

    assert texts(read(False), lambda _: None) == texts(read(False), lambda _: None)
    assert texts(read(True), lambda _: None) != texts(read(True), lambda _: None)
