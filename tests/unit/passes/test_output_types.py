"""Outputs leave the device as int32 and float32."""

from __future__ import annotations

import pytest
import torch
from support.hand_graphs import HandGraph, computed, targets

from poptorch_emu.ir.verify import verify
from poptorch_emu.passes import output_types

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("wide", "narrow"), [(torch.int64, torch.int32), (torch.float64, torch.float32)]
)
def test_wide_outputs_and_anchors_then_are_narrowed_and_nothing_else(wide, narrow) -> None:
    hand = HandGraph()
    x = hand.input(3, dtype=wide)
    twice = hand.add(aten.add.Tensor, x, x)
    graph = hand.end(twice, x, anchor={"a": twice}, variable={"v": twice}, gradient={"g": twice})
    given = {"input 0": torch.tensor([1, -2, 3]).to(wide)}
    before = computed(graph, given)
    after = computed(verify(output_types.run(graph)), given)
    narrowed = {"output 0", "output 1", "anchor a"}
    for name, value in after.items():
        assert value.dtype is (narrow if name in narrowed else wide)
        assert torch.equal(value, before[name].to(value.dtype))
    types = [node.meta["val"].dtype for _, node in graph.results]
    assert types == [value.dtype for value in after.values()]


def test_narrow_outputs_then_stay_as_they_are() -> None:
    hand = HandGraph()
    nodes = [hand.input(2, dtype=dtype) for dtype in (torch.float16, torch.int32, torch.bool)]
    assert targets(output_types.run(hand.end(*nodes))) == []
