"""Titles of operations: the module, and the name of the function that the user called."""

from __future__ import annotations

import pytest
import torch
from support.hand_graphs import HandGraph

from poptorch_emu.plan.operations.operation_titles import (
    accumulation_title,
    title_of,
    titles_of,
)

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "plain"),
    [
        ("mm", "mm"),
        ("_log_softmax_backward_data", "log_softmax_backward_data"),
        ("_unsafe_view", "view"),
        ("native_layer_norm", "layer_norm"),
        ("_native_batch_norm_legit", "batch_norm_legit"),
        ("_scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_attention"),
        ("_thnn_fused_lstm_cell", "fused_lstm_cell"),
    ],
)
def test_title_when_an_operator_is_a_kernel_then_it_has_the_plain_name(
    operator: str, plain: str
) -> None:
    assert title_of("encoder.0", operator) == f"encoder.0: {plain}"
    assert title_of("", operator) == plain


def test_titles_when_operations_are_alike_then_they_are_numbered_in_order() -> None:
    hand = HandGraph()
    x = hand.input(3)
    first = hand.add(aten.neg.default, x)
    other = hand.add(aten.abs.default, first)
    second = hand.add(aten.neg.default, other)
    hand.end(second)
    titles = titles_of(hand.graph)
    assert [titles[node] for node in (first, other, second)] == ["neg", "abs", "neg 2"]


@pytest.mark.parametrize(
    ("weight", "title"),
    [("head.weight", "head: accumulate weight"), ("scale", "accumulate scale")],
)
def test_accumulation_when_titled_then_the_module_of_the_weight_stands_first(
    weight: str, title: str
) -> None:
    assert accumulation_title(weight) == title
