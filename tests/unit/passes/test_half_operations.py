"""Operations of half numbers that are computed in float32 and rounded once."""

from __future__ import annotations

import operator

import torch
from support.hand_graphs import HandGraph, computed, targets

from poptorch_emu.ir.marks import IS_WIDENED
from poptorch_emu.ir.verify import verify
from poptorch_emu.passes import half_operations

aten = torch.ops.aten
PLAIN = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)


def convolution(dtype: torch.dtype) -> HandGraph:
    hand = HandGraph()
    x, w = hand.input(2, 3, 6, 6, dtype=dtype), hand.variable("w", 4, 3, 3, 3, dtype=dtype)
    y = hand.add(aten.convolution.default, x, w, None, *PLAIN)
    grads = hand.add(aten.convolution_backward.default, y, x, w, None, *PLAIN, [True, True, False])
    doubled = hand.add(aten.add.Tensor, y, y)
    hand.end(doubled, *(hand.add(operator.getitem, grads, index) for index in (0, 1)))
    return hand


def test_half_convolutions_then_are_exact_convolutions_rounded_once() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 6, 6).half(), torch.randn(4, 3, 3, 3).half()
    graph = verify(half_operations.run(convolution(torch.float16).graph))
    doubled, grad_x, grad_w = computed(graph, {"input 0": x, "variable w": w}).values()
    y = torch.nn.functional.conv2d(x.float(), w.float()).half()
    assert torch.equal(doubled, y + y)
    expected_x = torch.nn.grad.conv2d_input(x.shape, w.float(), y.float()).half()
    expected_w = torch.nn.grad.conv2d_weight(x.float(), w.shape, y.float()).half()
    torch.testing.assert_close(grad_x, expected_x, rtol=2**-10, atol=1e-3)
    torch.testing.assert_close(grad_w, expected_w, rtol=2**-10, atol=1e-3)
    assert grad_x.dtype is grad_w.dtype is torch.float16


def test_no_convolution_then_reads_or_makes_half_numbers_any_more() -> None:
    graph = half_operations.run(convolution(torch.float16).graph)
    convolutions = [node for node in graph.operations if "convolution" in str(node.target)]
    assert len(convolutions) == 2
    for node in convolutions:
        assert node.meta[IS_WIDENED]
        assert all(n.meta["val"].dtype is torch.float32 for n in node.all_input_nodes)
    (addition,) = [node for node in graph.operations if node.target is aten.add.Tensor]
    assert addition.meta["val"].dtype is torch.float16
    assert IS_WIDENED not in addition.meta


def test_float_convolutions_then_stay_as_they_are() -> None:
    hand = convolution(torch.float32)
    before = targets(hand.graph)
    assert targets(half_operations.run(hand.graph)) == before
