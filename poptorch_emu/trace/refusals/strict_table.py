"""Operators and arguments that the real compiler accepts, as data for strict mode.

Source: PopTorch's list of registered handlers and the restrictions that they check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# Operators that the compiler handles, by name without "aten::", outer "_" and number of inputs.
HANDLED = frozenset(
    """
    cdist_forward convolution embedding_bag log_softmax prelu_kernel reshape_alias softmax
    unsafe_view weight_norm abs acos acosh adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d add addcdiv addcmul addmm addmv all amax amin and any arange argmax
    argmin argsort asin asinh atan atan2 atanh avg_pool1d avg_pool2d avg_pool3d baddbmm
    batch_norm bernoulli bilinear binary_cross_entropy binary_cross_entropy_with_logits bincount
    bitwise_and bitwise_not bitwise_or bitwise_xor bmm broadcast_to bucketize cartesian_prod cat
    cdist ceil celu chunk clamp clamp_max clamp_min clone col2im constant_pad_nd contiguous copy
    cos cosh cosine_embedding_loss cosine_similarity count_nonzero cross cross_entropy_loss
    ctc_loss cumprod cumsum detach div dot dropout einsum elu embedding eq erf erfc exp expand
    expand_as expm1 exponential feature_dropout flatten flip floor floor_divide fmod frac
    frobenius_norm full full_like gather ge gelu glu group_norm gru gt hardshrink hardsigmoid
    hardswish hardtanh hinge_embedding_loss im2col index index_fill index_put index_reduce
    index_select instance_norm isnan kl_div l1_loss layer_norm le leaky_relu linalg_cross
    linalg_vector_norm linear log log10 log1p log2 log_sigmoid log_sigmoid_forward logical_and
    logical_not logical_or logsumexp lstm lt margin_ranking_loss masked_fill matmul max
    max_pool1d max_pool2d max_pool3d maximum mean median meshgrid min minimum mish mm mse_loss
    mul multilabel_soft_margin_loss mv nansum narrow native_batch_norm native_group_norm
    native_layer_norm ne neg new_full new_ones new_zeros nll_loss2d nll_loss2d_forward
    nll_loss_forward nll_loss_nd norm normal numpy_T one_hot ones ones_like or pairwise_distance
    permute pixel_shuffle poisson_nll_loss pow prelu prod rand randint randn random randperm
    reciprocal reflection_pad1d reflection_pad2d relu remainder repeat replication_pad1d
    replication_pad2d replication_pad3d reshape rnn_relu rnn_tanh roll round rrelu
    rrelu_with_noise rsqrt rsub scatter scatter_add scatter_reduce select selu sigmoid sign silu
    sin sinh slice smooth_l1_loss soft_margin_loss softplus softshrink sort split
    split_with_sizes sqrt square squeeze stack std std_mean sub sum t take_along_dim tan tanh
    tensordot threshold to topk transpose triplet_margin_loss true_divide trunc type_as unbind
    unfold uniform unsafe_chunk unsqueeze upsample_bicubic2d upsample_bilinear2d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d var var_mean view where xor zeros
    zeros_like
    """.split()
)

# Operators of our graphs that stand for handled operators, or become handled ones on the device.
EQUIVALENT = frozenset(
    """
    adaptive_avg_pool2d adaptive_avg_pool3d alias ctc_loss embedding_bag_forward_only empty
    empty_like empty_strided eye fill is_all_true index_add lift_fresh lift_fresh_copy
    linspace logspace max_pool2d_with_indices max_pool3d_with_indices native_batch_norm_legit
    native_batch_norm_legit_no_training native_dropout new_empty randint_like randn_like rand_like
    safe_softmax
    scaled_dot_product_flash_attention_for_cpu scalar_tensor select_scatter slice_scatter to_copy
    tril tril_indices triu triu_indices weight_norm_interface zero
    """.split()
)

Call = dict[str, Any]


@dataclass(frozen=True)
class Restriction:
    """A condition under which the compiler rejects an operator that it otherwise accepts.

    Attributes:
        operators: names of the operators with this condition.
        is_violated: returns whether a call is rejected, from its (fake) arguments by name.
        text: message or behaviour of the compiler.
    """

    operators: frozenset[str]
    is_violated: Callable[[Call], bool]
    text: str


def _on(names: str, is_violated: Callable[[Call], bool], text: str) -> Restriction:
    return Restriction(frozenset(names.split()), is_violated, text)


def _is_8_bit(call: Call) -> bool:
    tensors = [value for value in call.values() if isinstance(value, torch.Tensor)]
    return any(tensor.dtype in (torch.int8, torch.uint8) for tensor in tensors)


def _is_divided_unevenly(call: Call) -> bool:
    size = call["output_size"]
    wanted = [size] if isinstance(size, int) else list(size)
    given = call["self"].shape[-len(wanted) :]
    return any(have % want for have, want in zip(given, wanted, strict=True))


def _has_uneven_scales(call: Call) -> bool:
    scales = call.get("scale_factors") or [call.get("scales_h"), call.get("scales_w")]
    known = [scale for scale in scales if scale is not None]
    return len(set(known)) > 1 or any(scale != int(scale) for scale in known)


RESTRICTIONS = (
    _on(
        "nll_loss_forward nll_loss2d_forward",
        lambda call: call["weight"] is not None,
        'Parameter "weight" is unsupported for aten::nll_loss_nd',
    ),
    _on(
        "embedding",
        lambda call: call["scale_grad_by_freq"] or call["sparse"],
        "Unsupported aten::embedding operation (scale_grad_by_freq or sparse)",
    ),
    _on(
        "embedding_bag embedding_bag_forward_only",
        lambda call: call["scale_grad_by_freq"] or call["sparse"],
        "Unsupported aten::embedding_bag operation (scale_grad_by_freq or sparse)",
    ),
    _on(
        "embedding_bag embedding_bag_forward_only",
        lambda call: call["padding_idx"] >= 0,
        "Unsupported aten::embedding_bag operation: padding_idx parameter is unsupported",
    ),
    _on(
        "index_put index_put_impl",
        lambda call: call["accumulate"],
        "accumulate=True is silently ignored there: the last write wins",
    ),
    _on(
        "round",
        lambda call: call.get("decimals", 0) != 0,
        "decimals of round is not handled there",
    ),
    _on(
        "bitwise_and bitwise_or bitwise_xor bitwise_not and or xor",
        _is_8_bit,
        "Poplar does not support binary operations on 8-bit integral types.",
    ),
    _on("topk", lambda call: not call["sorted"], "topk with sorted=False is unsupported"),
    _on(
        "std var std_mean var_mean",
        lambda call: call.get("correction", 1) not in (None, 0, 1),
        "only a correction of 0 or 1 is supported",
    ),
    _on(
        "convolution",
        lambda call: call["transposed"] and any(value != 1 for value in call["dilation"]),
        "a transposed convolution with a dilation other than 1 is unsupported",
    ),
    _on(
        "avg_pool1d avg_pool2d avg_pool3d",
        lambda call: call.get("divisor_override") is not None,
        "divisor_override is silently ignored there",
    ),
    _on(
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
        _is_divided_unevenly,
        "an input dim is not divisible by its output dim",
    ),
    _on(
        "upsample_bilinear2d",
        _has_uneven_scales,
        "Non-uniform bilinear upsampling not supported, nor with non-integer factor",
    ),
    _on(
        "upsample_bicubic2d",
        lambda call: call["align_corners"],
        "Only support align_corners=False.",
    ),
    _on(
        "rnn_layer",
        lambda call: _is_lstm(call) and call["reverse"],
        "bidirectional LSTM not supported",
    ),
    _on(
        "rnn_layer",
        lambda call: _is_lstm(call) and len(call["weights"]) == 2,
        "LSTM without biases not supported",
    ),
)


def _is_lstm(call: Call) -> bool:
    return bool(call["mode"] == "lstm")
