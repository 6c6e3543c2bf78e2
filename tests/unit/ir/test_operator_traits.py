"""The traits of operators, compared with PyTorch's and the engine's own facts."""

from __future__ import annotations

import pytest
import torch

from poptorch_emu.ir.arguments import arguments_of, with_arguments
from poptorch_emu.ir.control import COND, FOR_LOOP, HOST_CALL
from poptorch_emu.ir.operator_traits import traits_of

aten = torch.ops.aten
ours = torch.ops.poptorch_emu


@pytest.mark.parametrize(
    ("target", "trait"),
    [
        (aten.mm.default, "is_pure"),
        (aten.relu.default, "is_pointwise"),
        (aten.view.default, "is_view"),
        (aten._unsafe_view.default, "is_view"),
        (ours.contiguous.default, "is_view"),
        (aten.permute.default, "is_linear"),
        (aten.neg.default, "is_linear"),
        (aten.zeros_like.default, "reads_shape_only"),
        (aten.new_full.default, "reads_shape_only"),
        (ours.dropout.default, "is_pure"),
        (ours.print_tensor.default, "is_seen_outside"),
        (HOST_CALL, "is_foreign"),
        (FOR_LOOP, "runs_bodies"),
        (COND, "runs_bodies"),
    ],
    ids=str,
)
def test_traits_when_operator_has_one_then_it_is_told(target, trait) -> None:
    assert getattr(traits_of(target), trait)


@pytest.mark.parametrize(
    ("target", "trait"),
    [
        (aten.add_.Tensor, "is_pure"),
        (aten.add_.Tensor, "is_view"),
        (aten.dropout.default, "is_pure"),
        (aten.bernoulli.default, "is_pointwise"),
        (aten.mm.default, "is_view"),
        (aten.mm.default, "is_pointwise"),
        (aten.mm.default, "is_foreign"),
        (aten.relu.default, "is_linear"),
        (aten.sum.dim_IntList, "reads_shape_only"),
        (aten.empty_like.default, "reads_shape_only"),
        (ours.print_tensor.default, "is_pure"),
        (FOR_LOOP, "is_pure"),
        (torch.ops.prims.neg.default, "is_foreign"),
    ],
    ids=str,
)
def test_traits_when_operator_has_one_not_then_it_is_not_told(target, trait) -> None:
    assert not getattr(traits_of(target), trait)


def test_traits_when_operator_is_of_a_library_then_nothing_is_known_of_it() -> None:
    torch.library.define("test_operator_traits::mystery", "(Tensor x) -> Tensor")
    traits = traits_of(torch.ops.test_operator_traits.mystery.default)
    assert traits.is_foreign and traits.is_seen_outside and not traits.is_pure


def test_arguments_when_some_are_not_given_then_defaults_stand_for_them() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(aten.add.Tensor, (x, 2.0), {"alpha": 3})
    found = arguments_of(node)
    assert (found.self, found.other, found.alpha) == (x, 2.0, 3)
    node = graph.call_function(aten.max_pool2d_with_indices.default, (x, [2, 2]))
    found = arguments_of(node)
    assert found.ceil_mode is False and found.dilation == [1, 1]


def test_arguments_when_one_is_changed_then_the_others_stay_in_their_places() -> None:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    node = graph.call_function(aten.addmm.default, (x, x, y))
    assert with_arguments(node, mat1=y)[:3] == (x, y, y)
    with pytest.raises(AssertionError, match="no argument"):
        with_arguments(node, weight=y)
