"""C++ rules for the metadata of losses, reductions, random numbers and indexed writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.metadata_checks import check, check_refused, on_meta

from poptorch_emu.trace.fakes import metadata_rules

aten = torch.ops.aten

ROWS = torch.rand(5, 7)
OTHER = torch.rand(5, 7)
TURNED = torch.rand(7, 5).t()
EXPANDED = torch.rand(()).expand(5, 7)
SCALAR = torch.rand(())
TRUTHS = ROWS > 0.5
NUMBERS = torch.randint(5, (5, 7))
PLACES = torch.tensor([4, 0, 2])
IMAGES = torch.rand(2, 8, 6, 4)
WEIGHT = torch.rand(7)

ELEMENTS = {
    "not a number": (aten.isnan.default, TURNED),
    "infinite": (aten.isinf.default, NUMBERS),
    "numbers for infinity": (aten.nan_to_num.default, TURNED),
    "both": (aten.logical_and.default, TRUTHS, NUMBERS[0]),
    "one or both": (aten.logical_or.default, ROWS, TURNED),
    "one of both": (aten.logical_xor_.default, TRUTHS.clone(), TRUTHS),
    "remainder": (aten.remainder.Scalar, NUMBERS, 2.5),
    "remainder with a sign": (aten.fmod.Scalar, NUMBERS, 2),
    "whole quotient": (aten.floor_divide.default, NUMBERS, OTHER),
    "whole quotient of a number": (aten.floor_divide.default, NUMBERS, 2),
    "relu in place": (aten.relu_.default, TURNED),
    "celu": (aten.celu.default, TURNED),
    "gated": (aten.glu.default, IMAGES, 1),
    "shrunk": (aten.softshrink.default, TURNED),
    "no less than a tensor": (aten.clamp_min.Tensor, ROWS, WEIGHT),
    "clamped": (aten.clamp.Tensor, TURNED, None, WEIGHT),
    "x log y": (aten.xlogy.Tensor, NUMBERS, ROWS),
    "log sigmoid": (aten.log_sigmoid_forward.default, ROWS),
    "masked, transposed": (aten.masked_fill.Scalar, TURNED, TRUTHS, 1),
    "masked, expanded": (aten.masked_fill.Scalar, EXPANDED, TRUTHS, 1),
    "masked in place": (aten.masked_fill_.Scalar, ROWS.clone(), TRUTHS, 1),
    "filled": (aten.fill.Scalar, TURNED, 2),
    "filled in place": (aten.fill_.Scalar, ROWS.clone(), 2),
}
MADE = {
    "random": (aten.rand.default, [2, 3]),
    "normal": (aten.randn.default, [2, 0]),
    "random like transposed": (aten.rand_like.default, TURNED),
    "coins": (aten.bernoulli.default, TURNED),
    "identity": (aten.eye.default, 3),
    "part of an identity": (aten.eye.m, 3, 2),
    "steps": (aten.linspace.default, 0, 1, 5),
    "numbers of floats": (aten.arange.start_step, 0.5, 2.5, 0.3),
    "numbers backwards": (aten.arange.start_step, 2.0, -1.0, -1.0),
    "new and full": (aten.new_full.default, NUMBERS, [2, 3], 1.5),
    "new with strides": (aten.new_empty_strided.default, ROWS, [2, 3], [1, 2]),
}
PUT = {
    "rows by number": (aten.index.Tensor, ROWS, [PLACES]),
    "columns by number": (aten.index.Tensor, IMAGES, [None, PLACES.view(3, 1), None, PLACES[1]]),
    "put rows": (aten.index_put.default, ROWS, [PLACES], WEIGHT),
    "add rows": (aten.index_put_.default, ROWS.clone(), [PLACES], OTHER[:3], True),
    "put by a mask": (aten.index_put.default, ROWS, [TRUTHS], SCALAR),
    "put rows by a mask": (aten.index_put.default, ROWS, [TRUTHS[:, 0]], SCALAR),
    "fill rows": (aten.index_fill.int_Scalar, ROWS, 0, PLACES, 1),
    "index add": (aten.index_add.default, ROWS, 0, PLACES, OTHER[:3]),
    "index copy": (aten.index_copy.default, TURNED, 0, PLACES, OTHER[:3]),
    "scatter": (aten.scatter.src, ROWS, 1, NUMBERS, OTHER),
    "scatter a number": (aten.scatter.value, ROWS, 1, NUMBERS[:3], 1),
    "scatter and add": (aten.scatter_add.default, TURNED, 0, NUMBERS[:2], OTHER),
    "scatter and multiply": (aten.scatter_reduce.two, ROWS, 0, NUMBERS, OTHER, "prod"),
    "row put in": (aten.select_scatter.default, ROWS, WEIGHT, 0, -1),
    "columns put in": (aten.slice_scatter.default, ROWS, OTHER[:, 1:6:2], 1, 1, 6, 2),
    "copied": (aten.copy.default, ROWS, WEIGHT),
    "copied to a column": (aten.copy.default, ROWS[:, 2], PLACES[0]),
    "diagonal": (aten.diagonal_backward.default, ROWS[0, :5], [5, 7], 0, 0, 1),
}
ORDERS = {
    "flipped": (aten.flip.default, TURNED, [-1]),
    "flipped, expanded": (aten.flip.default, EXPANDED, [0, 1]),
    "rolled": (aten.roll.default, TURNED, [2], [0]),
    "rolled as one": (aten.roll.default, ROWS, [2]),
    "repeated": (aten.repeat.default, ROWS, [2, 1, 3]),
    "pixels of channels": (aten.pixel_shuffle.default, IMAGES, 2),
    "channels of pixels": (aten.pixel_unshuffle.default, IMAGES, 2),
    "sorted": (aten.sort.default, TURNED, 0, True),
    "padded by reflection": (aten.reflection_pad1d.default, ROWS, [1, 2]),
    "padded by edges": (aten.replication_pad2d.default, IMAGES, [1, 0, 2, 1]),
    "nearest": (aten.upsample_nearest1d.default, IMAGES[0], [9]),
    "cubic": (aten.upsample_bicubic2d.default, IMAGES, [3, 9], False),
    "largest to a size": (aten.adaptive_max_pool2d.default, IMAGES, [3, 2]),
}
REDUCED = {
    "product": (aten.prod.default, NUMBERS),
    "middle": (aten.median.default, ROWS),
    "middle of rows": (aten.median.dim, ROWS, 1, True),
    "second of rows": (aten.kthvalue.default, ROWS, 2, 0),
    "deviation": (aten.std.correction, TURNED, [1]),
    "variance": (aten.var.correction, IMAGES, [0, 2]),
    "variance of all": (aten.var.correction, ROWS.half()),
    "variance and mean": (aten.var_mean.correction, ROWS, [-1]),
    "log of a sum": (aten.logsumexp.default, IMAGES, [1, -1], True),
    "logs of sums": (aten.logcumsumexp.default, ROWS, 0),
    "products": (aten.cumprod.default, NUMBERS, 0),
    "norm": (aten.linalg_vector_norm.default, TURNED, 2, [1]),
    "norm of all": (aten.linalg_vector_norm.default, ROWS, 1),
    "norm of rows": (aten.norm.ScalarOpt_dim, ROWS, 2.0, [1], True),
    "matrix and vector": (aten.mv.default, TURNED, WEIGHT),
    "product of vectors": (aten.dot.default, WEIGHT, ROWS[0]),
    "the same, of complex ones": (aten.vdot.default, WEIGHT, ROWS[0]),
}
LOSSES = {
    "binary": (aten.binary_cross_entropy.default, ROWS, OTHER),
    "binary, weighed, of each": (aten.binary_cross_entropy.default, ROWS, OTHER, WEIGHT, 0),
    "logits": (aten.binary_cross_entropy_with_logits.default, ROWS, OTHER),
    "huber": (aten.huber_loss.default, ROWS, OTHER, 0, 0.5),
    "gradient of squares": (aten.mse_loss_backward.default, SCALAR, ROWS, OTHER, 1),
    "gradient of each square": (aten.mse_loss_backward.default, ROWS, ROWS, OTHER, 0),
    "gradient of smooth": (aten.smooth_l1_loss_backward.default, SCALAR, ROWS, OTHER, 2, 1.0),
    "gradient of huber": (aten.huber_loss_backward.default, SCALAR, ROWS, OTHER, 1, 1.0),
    "gradient of binary": (aten.binary_cross_entropy_backward.default, SCALAR, ROWS, OTHER),
    "gradient of gated": (aten.glu_backward.default, IMAGES[:, :4], IMAGES, 1),
    "gradient of dropout": (aten.native_dropout_backward.default, EXPANDED, TRUTHS, 2.0),
    "gradient of a norm, expanded": (
        *(aten.native_layer_norm_backward.default, EXPANDED, ROWS, [7], ROWS[:, :1]),
        *(ROWS[:, :1], WEIGHT, WEIGHT, [True, True, True]),
    ),
    "gradient of a norm of channels, expanded": (
        *(aten.native_batch_norm_backward.default, EXPANDED, ROWS, None, None, None),
        *(WEIGHT, WEIGHT, True, 1e-5, [True, False, False]),
    ),
    "direction and length": (aten._weight_norm_interface.default, ROWS, ROWS[:, :1].clone()),
    "gradient of direction and length": (
        *(aten._weight_norm_interface_backward.default, OTHER, ROWS, ROWS[:, :1].clone()),
        *(OTHER[:, :1].clone(), 0),
    ),
}
CASES = ELEMENTS | MADE | PUT | ORDERS | REDUCED | LOSSES


@pytest.mark.parametrize("case", CASES)
def test_metadata_when_a_rule_says_it_then_is_pytorch_s(case: str) -> None:
    func, *args = CASES[case]
    check(func, *args)


@pytest.mark.parametrize("gradient", [ROWS, TURNED, EXPANDED], ids=["dense", "turned", "expanded"])
@pytest.mark.parametrize("x", [OTHER, TURNED], ids=["dense", "turned"])
def test_metadata_of_the_gradient_of_an_activation_is_pytorch_s(
    x: torch.Tensor, gradient: torch.Tensor
) -> None:
    check(aten.elu_backward.default, gradient, 1.0, 1, 1.0, False, x)
    check(aten.hardshrink_backward.default, gradient, x, 0.5)
    check(aten.hardsigmoid_backward.default, gradient, x)
    check(aten.hardswish_backward.default, gradient, x)
    check(aten.hardtanh_backward.default, gradient, x, -1, 1)
    check(aten.leaky_relu_backward.default, gradient, x, 0.1, False)
    if x is OTHER or gradient is not EXPANDED:  # No rule for the others.
        check(aten.log_sigmoid_backward.default, gradient, x, x)
    check(aten.mish_backward.default, gradient, x)
    check(aten.softplus_backward.default, gradient, x, 1, 20)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    shape=st.lists(st.integers(1, 3), max_size=2),
    data=st.data(),
)
def test_metadata_of_what_indices_choose_is_pytorch_s(
    sizes: list[int], shape: list[int], data: Any
) -> None:
    x = torch.rand(sizes).permute(data.draw(st.permutations(range(len(sizes)))))
    indices: list[torch.Tensor | None] = []
    for _ in range(data.draw(st.integers(1, len(sizes)))):
        part = shape[data.draw(st.integers(0, len(shape))) :]
        dtype = data.draw(st.sampled_from([torch.long, torch.int32]))
        indices.append(data.draw(st.sampled_from([None, torch.zeros(part, dtype=dtype)])))
    if all(index is None for index in indices):
        indices[0] = torch.zeros(shape, dtype=torch.long)
    check(aten.index.Tensor, x, indices)
    if x.is_contiguous():
        check(aten.index_put.default, x, indices, SCALAR)


LAST = IMAGES.to(memory_format=torch.channels_last)
LEFT = {
    "rolled, channels last": (aten.roll.default, LAST, [1], [2]),
    "padded, channels last": (aten.replication_pad2d.default, LAST, [1, 0, 2, 1]),
    "copied to an expanded one": (aten.copy.default, EXPANDED, ROWS),
    "put, transposed": (aten.index_put.default, TURNED, [PLACES], WEIGHT),
}


@pytest.mark.parametrize("case", LEFT)
def test_arguments_when_their_metadata_is_another_then_are_left_to_pytorch(case: str) -> None:
    func, *args = LEFT[case]
    rule = metadata_rules.find(func, tuple(args))
    assert rule is not None
    with pytest.raises(metadata_rules.NOT_TAKEN):
        rule(*on_meta(args))


WRONG = {
    "other sizes": (aten.mse_loss_backward.default, SCALAR, ROWS, TURNED.t(), 1),
    "matrix and vector": (aten.mv.default, ROWS, ROWS[:, 0]),
    "vectors of two lengths": (aten.dot.default, WEIGHT, ROWS[:, 0]),
    "less than once for each dimension": (aten.repeat.default, ROWS, [2]),
    "flipped twice": (aten.flip.default, ROWS, [0, -2]),
    "rolled along two": (aten.roll.default, ROWS, [1], [0, 1]),
    "part of another size": (aten.slice_scatter.default, ROWS, OTHER, 1, 0, 3),
    "row of another size": (aten.select_scatter.default, ROWS, ROWS[:, 0], 0, 0),
    "too many values": (aten.index_put.default, ROWS, [PLACES], OTHER),
    "rows that do not fit": (aten.index_add.default, ROWS, 0, PLACES, OTHER),
    "one that is not there": (aten.kthvalue.default, ROWS, 9, 1),
    "pixels of too few channels": (aten.pixel_shuffle.default, IMAGES, 3),
    "written to one place for all": (aten.relu_.default, EXPANDED),
    "a curve of integers": (aten.celu.default, NUMBERS),
    "quotient of truths": (aten.floor_divide.default, TRUTHS, TRUTHS),
    "diagonal of another size": (aten.diagonal_backward.default, WEIGHT, [5, 6], 0, 0, 1),
    "no steps": (aten.arange.start_step, 0.0, 1.0, 0.0),
    "half of an odd number": (aten.glu.default, ROWS, 1),
    "more places than rows": (aten.scatter.src, ROWS, 1, NUMBERS.repeat(2, 1), OTHER),
}


@pytest.mark.parametrize("case", WRONG)
def test_arguments_when_pytorch_refuses_them_then_no_rule_takes_them(case: str) -> None:
    func, *args = WRONG[case]
    check_refused(func, *args)
