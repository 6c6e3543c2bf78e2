"""Calls of functions whose arguments do not follow from their signatures.

The names of a call's parameters choose the arrays of the device, see `ARRAYS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

K = tf.keras.backend


def _drawn(shape: Any, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


_SQUARE = _drawn((4, 4), 1)
ARRAYS: dict[str, np.ndarray] = {
    "x": _drawn((3, 4), 2),
    "y": _drawn((3, 4), 3),
    "u": np.random.default_rng(4).uniform(0.1, 0.9, (3, 4)).astype(np.float32),
    "v": _drawn((4,), 5),
    "w": abs(_drawn((4,), 6)) + 0.1,
    "m": _SQUARE @ _SQUARE.T + 4 * np.eye(4, dtype=np.float32),  # Positive definite.
    "n": np.array([2, 0, 3, 1], np.int32),
    "i": np.random.default_rng(7).integers(0, 4, (3, 4)).astype(np.int32),
    "p": _drawn((2, 6, 6, 4), 8),
    "k": _drawn((2, 2, 4, 3), 9),
    "t": _drawn((2, 2, 3, 4), 10),
    "s": _drawn((2, 8, 4), 11),
    "ks": _drawn((3, 4, 5), 12),
    "ts": _drawn((3, 5, 4), 13),
    "q": _drawn((1, 4, 4, 4, 2), 14),
    "kq": _drawn((2, 2, 2, 2, 3), 15),
    "tq": _drawn((2, 2, 2, 3, 2), 16),
}

# Functions that take and return no values of the device: of the host, of graphs, or Python's.
OF_HOST = """
tf.as_dtype tf.check_pinned tf.get_current_name_scope tf.get_logger tf.import_graph_def
tf.load_library tf.load_op_library tf.make_ndarray tf.make_tensor_proto tf.no_gradient
tf.nondifferentiable_batch_function tf.random_index_shuffle
tf.register_tensor_conversion_function tf.timestamp tf.type_spec_from_value
tf.variable_creator_scope tf.math.sobol_sample
tf.keras.backend.backend tf.keras.backend.dtype tf.keras.backend.epsilon tf.keras.backend.floatx
tf.keras.backend.image_data_format tf.keras.backend.is_float_dtype tf.keras.backend.is_int_dtype
tf.keras.backend.name_scope tf.keras.backend.result_type tf.keras.backend.standardize_dtype
tf.keras.backend.batch_get_value tf.keras.backend.batch_set_value tf.keras.backend.eval
tf.keras.backend.get_value tf.keras.backend.set_value tf.keras.backend.random_bernoulli
tf.keras.backend.random_normal tf.keras.backend.random_uniform tf.keras.backend.truncated_normal
tf.keras.backend.update tf.keras.backend.update_add tf.keras.backend.update_sub
tf.keras.backend.moving_average_update tf.keras.backend.print_tensor
""".split()


@tf.custom_gradient
def _doubled(x: Any) -> Any:
    return x * 2.0, lambda dy: dy * 5.0


def _inside(make: Callable[[], Any], x: Any) -> Any:
    with make():
        return x * 2.0


def _made_outside(value: float) -> Any:
    with tf.init_scope():
        return tf.constant(value)


def _after(operation: Any, x: Any) -> Any:
    return x * 2.0


CALLS: dict[str, Callable[..., Any]] = {
    "tf.add_n": lambda x, y: tf.add_n([x, y, x]),
    "tf.as_string": lambda x: tf.as_string(x),
    "tf.assert_equal": lambda x: _after(tf.debugging.assert_equal(x, x), x),
    "tf.assert_greater": lambda x: _after(tf.debugging.assert_greater(x, x - 1.0), x),
    "tf.assert_less": lambda x: _after(tf.debugging.assert_less(x, x + 1.0), x),
    "tf.assert_rank": lambda x: _after(tf.debugging.assert_rank(x, 2), x),
    "tf.bitcast": lambda x: tf.bitcast(x, tf.int32),
    "tf.boolean_mask": lambda x: tf.boolean_mask(x, [True, False, True]),
    "tf.broadcast_dynamic_shape": lambda x, v: tf.zeros(
        tf.broadcast_dynamic_shape(tf.shape(x), tf.shape(v))
    ),
    "tf.broadcast_static_shape": lambda x, v: tf.zeros(
        tf.broadcast_static_shape(x.shape, v.shape)
    ),
    "tf.case": lambda x, y: tf.case(
        [(tf.reduce_sum(tf.stop_gradient(x)) > 100.0, lambda: 1.0)], default=lambda: 2.0
    ),
    "tf.clip_by_global_norm": lambda x, y: tf.clip_by_global_norm([x, y], 0.5),
    "tf.complex": lambda x, y: tf.math.real(tf.complex(x, y)),
    "tf.cond": lambda x: tf.cond(tf.reduce_sum(x) > 100.0, lambda: 1.0, lambda: 2.0),
    "tf.constant": lambda x: x + tf.constant([1.0, 2.0, 3.0, 4.0]),
    "tf.control_dependencies": lambda x: _inside(lambda: tf.control_dependencies([x]), x),
    "tf.conv": lambda p, k: tf.conv(p, k, [1, 1, 1, 1], "SAME"),
    "tf.conv2d_backprop_filter_v2": lambda p: tf.conv2d_backprop_filter_v2(
        p, tf.zeros([2, 2, 4, 4]), p, [1, 1, 1, 1], "SAME"
    ),
    "tf.conv2d_backprop_input_v2": lambda p, t: tf.conv2d_backprop_input_v2(
        tf.zeros([2, 6, 6, 3]), t, p, [1, 1, 1, 1], "SAME"
    ),
    "tf.custom_gradient": lambda x: _doubled(x),
    "tf.device": lambda x: _inside(lambda: tf.device("/CPU:0"), x),
    "tf.dynamic_partition": lambda x: tf.dynamic_partition(x, [0, 1, 0], 2),
    "tf.dynamic_stitch": lambda x: tf.dynamic_stitch([[0, 2], [1]], [x[:2], x[2:]]),
    "tf.edit_distance": lambda i: tf.edit_distance(
        tf.sparse.from_dense(tf.cast(i, tf.int64)), tf.sparse.from_dense(tf.cast(i, tf.int64))
    ),
    "tf.einsum": lambda x, y: tf.einsum("ij,kj->ik", x, y),
    "tf.ensure_shape": lambda x: tf.ensure_shape(x, [3, 4]),
    "tf.executing_eagerly": lambda x: x if tf.executing_eagerly() else x * 2.0,
    "tf.extract_volume_patches": lambda q: tf.extract_volume_patches(
        q, [1, 2, 2, 2, 1], [1, 1, 1, 1, 1], "VALID"
    ),
    "tf.eye": lambda m: m + tf.eye(4),
    "tf.fftnd": lambda x: tf.math.real(tf.fftnd(tf.complex(x, x), [3], [0])),
    "tf.foldl": lambda x: tf.foldl(lambda a, row: a * 0.5 + row, x),
    "tf.foldr": lambda x: tf.foldr(lambda a, row: a * 0.5 + row, x),
    "tf.function": lambda x: tf.function(lambda z: z * 2.0)(x),
    "tf.get_static_value": lambda x: x if tf.get_static_value(x) is None else x * 2.0,
    "tf.grad_pass_through": lambda x: tf.grad_pass_through(tf.round)(x),
    "tf.gradients": lambda x: tf.gradients(x * x, x),
    "tf.group": lambda x: _after(tf.group(x), x),
    "tf.hessians": lambda x: tf.hessians(tf.reduce_sum(x * x), x),
    "tf.histogram_fixed_width": lambda x: tf.histogram_fixed_width(x, [-1.0, 1.0], 5),
    "tf.histogram_fixed_width_bins": lambda x: tf.histogram_fixed_width_bins(x, [-1.0, 1.0], 5),
    "tf.identity_n": lambda x, y: tf.identity_n([x, y]),
    "tf.ifftnd": lambda x: tf.math.real(tf.ifftnd(tf.complex(x, x), [3], [0])),
    "tf.init_scope": lambda x: x * _made_outside(2.0),
    "tf.inside_function": lambda x: x if tf.inside_function() else x * 2.0,
    "tf.irfftnd": lambda x: tf.irfftnd(tf.complex(x, x), [3], [0]),
    "tf.linspace": lambda v: tf.linspace(v[0], v[1], 5),
    "tf.map_fn": lambda x: tf.map_fn(lambda row: row * 2.0 + row[0], x),
    "tf.meshgrid": lambda v, w: tf.meshgrid(v, w, indexing="ij"),
    "tf.no_op": lambda x: _after(tf.no_op(), x),
    "tf.ones": lambda x: x + tf.ones([4]),
    "tf.parallel_stack": lambda x, y: tf.parallel_stack([x, y]),
    "tf.print": lambda x: _after(tf.print(x, output_stream="file:///dev/null"), x),
    "tf.ragged_fill_empty_rows": lambda v: tf.ragged_fill_empty_rows(
        tf.cast(tf.range(4), tf.int64), v, 5, 0.0
    ),
    "tf.ragged_fill_empty_rows_grad": lambda v: tf.ragged_fill_empty_rows_grad(
        tf.cast(tf.range(4), tf.int64), v
    ),
    "tf.range": lambda n: n + tf.range(4),
    "tf.required_space_to_batch_paddings": lambda p: tf.required_space_to_batch_paddings(
        tf.shape(p)[1:3], [4, 4]
    ),
    "tf.reverse": lambda x: tf.reverse(x, [1]),
    "tf.reverse_sequence": lambda x: tf.reverse_sequence(x, [1, 2, 3], seq_axis=1),
    "tf.rfftnd": lambda x: tf.math.real(tf.rfftnd(x, [3], [0])),
    "tf.scalar_mul": lambda x: tf.scalar_mul(2.0, x),
    "tf.scan": lambda x: tf.scan(lambda a, row: a * 0.5 + row, x),
    "tf.scatter_nd": lambda n, v: tf.scatter_nd(n[:, None], v, [6]),
    "tf.sequence_mask": lambda n: tf.sequence_mask(n, 5),
    "tf.shape_n": lambda x, v: tf.shape_n([x, v]),
    "tf.slice": lambda x: tf.slice(x, [0, 1], [2, 2]),
    "tf.space_to_batch": lambda p: tf.space_to_batch(p, [2, 2], [[0, 0], [2, 0]]),
    "tf.space_to_batch_nd": lambda p: tf.space_to_batch_nd(p, [2, 3], [[0, 0], [0, 0]]),
    "tf.strided_slice": lambda x: tf.strided_slice(x, [0, 3], [3, 0], [2, -1]),
    "tf.switch_case": lambda n: tf.switch_case(n[0], [lambda: 1.0, lambda: 2.0, lambda: 3.0]),
    **{
        f"tf.tensor_scatter_nd_{name}": lambda x, y, name=name: getattr(
            tf, f"tensor_scatter_nd_{name}"
        )(x, [[2], [0]], y[:2])
        for name in ("add", "max", "min", "sub", "update")
    },
    "tf.tuple": lambda x, y: tf.tuple([x, y]),
    "tf.vectorized_map": lambda x: tf.vectorized_map(lambda row: row * 2.0, x),
    "tf.while_loop": lambda x: tf.while_loop(
        lambda i, a: i < 3, lambda i, a: (i + 1, a * 2.0), [0, x]
    )[1],
    "tf.zeros": lambda x: x + tf.zeros([4]),
    "tf.nn.all_candidate_sampler": lambda i: tf.nn.all_candidate_sampler(
        tf.cast(i[:, :1], tf.int64), 1, 4, True
    )[1],
    "tf.nn.approx_max_k": lambda x: tf.nn.approx_max_k(x, 2),
    "tf.nn.approx_min_k": lambda x: tf.nn.approx_min_k(x, 2),
    "tf.nn.atrous_conv2d": lambda p, k: tf.nn.atrous_conv2d(p, k, 2, "SAME"),
    "tf.nn.atrous_conv2d_transpose": lambda p, t: tf.nn.atrous_conv2d_transpose(
        p, t, [2, 6, 6, 3], 2, "SAME"
    ),
    "tf.nn.avg_pool3d": lambda q: tf.nn.avg_pool3d(q, 3, 2, "SAME"),
    "tf.nn.batch_norm_with_global_normalization": lambda p, v, w: (
        tf.nn.batch_norm_with_global_normalization(p, v, w, v, w, 1e-3, True)
    ),
    "tf.nn.bias_add": lambda p, v: tf.nn.bias_add(p, v),
    "tf.nn.collapse_repeated": lambda i: tf.nn.collapse_repeated(i, [4, 3, 4])[0],
    "tf.nn.compute_accidental_hits": lambda i: tf.nn.compute_accidental_hits(
        tf.cast(i[:, :1], tf.int64), tf.cast(i[:, 0], tf.int64), 1
    ),
    "tf.nn.compute_average_loss": lambda v: tf.nn.compute_average_loss(v, global_batch_size=8),
    "tf.nn.conv1d": lambda s, ks: tf.nn.conv1d(s, ks, 2, "SAME"),
    "tf.nn.conv1d_transpose": lambda s, ts: tf.nn.conv1d_transpose(s, ts, [2, 16, 5], 2),
    "tf.nn.conv2d_transpose": lambda p, t: tf.nn.conv2d_transpose(p, t, [2, 12, 12, 3], 2),
    "tf.nn.conv3d": lambda q, kq: tf.nn.conv3d(q, kq, [1] * 5, "SAME"),
    "tf.nn.conv3d_transpose": lambda q, tq: tf.nn.conv3d_transpose(q, tq, [1, 8, 8, 8, 3], 2),
    "tf.nn.conv_transpose": lambda p, t: tf.nn.conv_transpose(p, t, [2, 6, 6, 3], 1),
    "tf.nn.ctc_beam_search_decoder": lambda s: tf.nn.ctc_beam_search_decoder(s, [2] * 8)[1],
    "tf.nn.ctc_greedy_decoder": lambda s: tf.nn.ctc_greedy_decoder(s, [2] * 8)[1],
    "tf.nn.ctc_loss": lambda s: tf.nn.ctc_loss([[1, 2], [3, 0]], s, [2, 1], [8, 8], False),
    "tf.nn.depthwise_conv2d": lambda p, k: tf.nn.depthwise_conv2d(p, k, [1] * 4, "SAME"),
    "tf.nn.depthwise_conv2d_backprop_filter": lambda p: tf.nn.depthwise_conv2d_backprop_filter(
        p, [2, 2, 4, 1], p, [1] * 4, "SAME"
    ),
    "tf.nn.depthwise_conv2d_backprop_input": lambda p, k: tf.nn.depthwise_conv2d_backprop_input(
        [2, 6, 6, 4], k[..., :1], p, [1] * 4, "SAME"
    ),
    "tf.nn.dilation2d": lambda p, k: tf.nn.dilation2d(
        p, k[..., 0], [1] * 4, "SAME", "NHWC", [1] * 4
    ),
    "tf.nn.embedding_lookup": lambda x, i: tf.nn.embedding_lookup(x, i % 3),
    "tf.nn.embedding_lookup_sparse": lambda x, i: tf.nn.embedding_lookup_sparse(
        x, tf.sparse.from_dense(tf.cast(i % 3, tf.int64)), None
    ),
    "tf.nn.erosion2d": lambda p, k: tf.nn.erosion2d(
        p, k[..., 0], [1] * 4, "SAME", "NHWC", [1] * 4
    ),
    **{
        f"tf.nn.{name}_candidate_sampler": lambda i, name=name: getattr(
            tf.nn, f"{name}_candidate_sampler"
        )(
            tf.cast(i[:, :1], tf.int64), 1, 2, True, 4,
            **({"unigrams": [1.0] * 4} if name == "fixed_unigram" else {}),
        )[1]
        for name in ("fixed_unigram", "learned_unigram")
    },
    "tf.nn.fractional_avg_pool": lambda p: tf.nn.fractional_avg_pool(p, [1, 1.5, 1.5, 1])[0],
    "tf.nn.fractional_max_pool": lambda p: tf.nn.fractional_max_pool(p, [1, 1.5, 1.5, 1])[0],
    "tf.nn.in_top_k": lambda i, x: tf.nn.in_top_k(i[:, 0], x, 2),
    "tf.nn.log_poisson_loss": lambda u, y: tf.nn.log_poisson_loss(u, y, True),
    "tf.nn.max_pool3d": lambda q: tf.nn.max_pool3d(q, 3, 2, "SAME"),
    "tf.nn.nce_loss": lambda m, v, i, x: tf.nn.nce_loss(
        m, v, tf.cast(i[:, :1], tf.int64), x, 2, 4
    ),
    "tf.nn.normalize_moments": lambda v, w: tf.nn.normalize_moments(4.0, v, w + v * v, None),
    "tf.nn.safe_embedding_lookup_sparse": lambda x, i: tf.nn.safe_embedding_lookup_sparse(
        x, tf.sparse.from_dense(tf.cast(i % 3, tf.int64))
    ),
    "tf.nn.sampled_softmax_loss": lambda m, v, i, x: tf.nn.sampled_softmax_loss(
        m, v, tf.cast(i[:, :1], tf.int64), x, 2, 4
    ),
    "tf.nn.scale_regularization_loss": lambda x: tf.nn.scale_regularization_loss(x),
    "tf.nn.separable_conv2d": lambda p, k: tf.nn.separable_conv2d(
        p, k, tf.ones([1, 1, 12, 2]), [1, 2, 2, 1], "SAME"
    ),
    "tf.nn.sigmoid_cross_entropy_with_logits": lambda u, y: (
        tf.nn.sigmoid_cross_entropy_with_logits(u, y)
    ),
    "tf.nn.space_to_batch": lambda p: tf.nn.space_to_batch(p, [2, 2], [[0, 0], [0, 0]]),
    "tf.nn.sparse_softmax_cross_entropy_with_logits": lambda i, x: (
        tf.nn.sparse_softmax_cross_entropy_with_logits(i[:, 0], x)
    ),
    "tf.nn.sufficient_statistics": lambda x: tf.nn.sufficient_statistics(x, [0])[:3],
    "tf.nn.weighted_cross_entropy_with_logits": lambda u, y: (
        tf.nn.weighted_cross_entropy_with_logits(u, y, 2.0)
    ),
    "tf.nn.weighted_moments": lambda x, w: tf.nn.weighted_moments(x, [0], w),
    "tf.nn.with_space_to_batch": lambda p: tf.nn.with_space_to_batch(
        p, [2, 2], "VALID", lambda z, spatial, padding: z * 2.0, [2, 2], [1, 2]
    ),
    "tf.math.accumulate_n": lambda x, y: tf.math.accumulate_n([x, y]),
    "tf.math.add_n": lambda x, y: tf.math.add_n([x, y]),
    "tf.math.approx_max_k": lambda x: tf.math.approx_max_k(x, 2),
    "tf.math.approx_min_k": lambda x: tf.math.approx_min_k(x, 2),
    "tf.math.bincount": lambda n: tf.math.bincount(n, minlength=4, maxlength=4),
    "tf.math.confusion_matrix": lambda n: tf.math.confusion_matrix(n, n[::-1], 4),
    "tf.math.in_top_k": lambda i, x: tf.math.in_top_k(i[:, 0], x, 2),
    "tf.math.invert_permutation": lambda n: tf.math.invert_permutation(n),
    "tf.math.nextafter": lambda x, y: tf.math.nextafter(x, y),
    "tf.math.polyval": lambda x, y: tf.math.polyval([x, y, x], y),
    "tf.math.scalar_mul": lambda x, v: tf.math.scalar_mul(v[0], x),
    "tf.math.zeta": lambda u: tf.math.zeta(u + 1.0, u),
    "tf.linalg.banded_triangular_solve": lambda m, v: tf.linalg.banded_triangular_solve(
        m, v[:, None]
    ),
    "tf.linalg.cholesky": lambda m: tf.linalg.cholesky(m),
    "tf.linalg.cholesky_solve": lambda m, v: tf.linalg.cholesky_solve(
        tf.linalg.cholesky(m), v[:, None]
    ),
    "tf.linalg.cross": lambda x, y: tf.linalg.cross(x[:, :3], y[:, 1:]),
    "tf.linalg.eigh_tridiagonal": lambda v, w: tf.linalg.eigh_tridiagonal(w, v[:3]),
    "tf.linalg.einsum": lambda x, m: tf.linalg.einsum("...j,jk->...k", x, m),
    "tf.linalg.eye": lambda m: m @ tf.linalg.eye(4, 3),
    "tf.linalg.global_norm": lambda x, v: tf.linalg.global_norm([x, v]),
    "tf.linalg.logm": lambda m: tf.math.real(tf.linalg.logm(tf.cast(m, tf.complex64))),
    "tf.linalg.lu_matrix_inverse": lambda m: tf.linalg.lu_matrix_inverse(*tf.linalg.lu(m)),
    "tf.linalg.lu_reconstruct": lambda m: tf.linalg.lu_reconstruct(*tf.linalg.lu(m)),
    "tf.linalg.lu_solve": lambda m, v: tf.linalg.lu_solve(*tf.linalg.lu(m), v[:, None]),
    "tf.linalg.set_diag": lambda m, v: tf.linalg.set_diag(m, v),
    "tf.linalg.tridiagonal_matmul": lambda x, m: tf.linalg.tridiagonal_matmul(x, m),
    "tf.linalg.tridiagonal_solve": lambda x, v: tf.linalg.tridiagonal_solve(x + 4.0, v),
    "tf.keras.backend.arange": lambda v: v + K.arange(4, dtype="float32"),
    "tf.keras.backend.batch_normalization": lambda x, v, w: K.batch_normalization(x, v, w, v, w),
    "tf.keras.backend.bias_add": lambda p, v: K.bias_add(p, v),
    "tf.keras.backend.concatenate": lambda x, y: K.concatenate([x, y], axis=0),
    "tf.keras.backend.constant": lambda x: x + K.constant([1.0, 2.0, 3.0, 4.0]),
    "tf.keras.backend.conv1d": lambda s, ks: K.conv1d(s, ks, padding="causal"),
    "tf.keras.backend.conv2d_transpose": lambda p, t: K.conv2d_transpose(
        p, t, (2, 12, 12, 3), (2, 2), padding="same"
    ),
    "tf.keras.backend.conv3d": lambda q, kq: K.conv3d(q, kq),
    "tf.keras.backend.ctc_batch_cost": lambda i, s: K.ctc_batch_cost(
        i[:2, :1] + 1, K.softmax(s), [[8], [8]], [[1], [1]]
    ),
    "tf.keras.backend.ctc_decode": lambda s: K.ctc_decode(K.softmax(s), [8, 8])[1],
    "tf.keras.backend.ctc_label_dense_to_sparse": lambda i: K.ctc_label_dense_to_sparse(
        i, tf.constant([2, 1, 3])
    ).values,
    "tf.keras.backend.depthwise_conv2d": lambda p, k: K.depthwise_conv2d(p, k),
    "tf.keras.backend.eye": lambda m: m + K.eye(4),
    "tf.keras.backend.foldl": lambda x: K.foldl(lambda a, row: a * 0.5 + row, x),
    "tf.keras.backend.foldr": lambda x: K.foldr(lambda a, row: a * 0.5 + row, x),
    "tf.keras.backend.gather": lambda x, n: K.gather(x, n % 3),
    "tf.keras.backend.gradients": lambda x: K.gradients(x * x, x),
    "tf.keras.backend.map_fn": lambda x: K.map_fn(lambda row: row * 2.0, x),
    "tf.keras.backend.ones": lambda x: x + K.ones((4,)),
    "tf.keras.backend.pool3d": lambda q: K.pool3d(q, (2, 2, 2), pool_mode="avg", padding="same"),
    "tf.keras.backend.repeat_elements": lambda x: K.repeat_elements(x, 2, 1),
    "tf.keras.backend.resize_images": lambda p: K.resize_images(p, 2, 3, "channels_last"),
    "tf.keras.backend.resize_volumes": lambda q: K.resize_volumes(q, 2, 1, 2, "channels_last"),
    "tf.keras.backend.rnn": lambda s, x: K.rnn(
        lambda z, states: (z + states[0], [z * 0.5 + states[0]]), s, [x[:2]]
    )[:2],
    "tf.keras.backend.separable_conv2d": lambda p, k: K.separable_conv2d(
        p, k, tf.ones([1, 1, 12, 2])
    ),
    "tf.keras.backend.sparse_categorical_crossentropy": lambda i, u: (
        K.sparse_categorical_crossentropy(i[:, 0], u)
    ),
    "tf.keras.backend.spatial_3d_padding": lambda q: K.spatial_3d_padding(q),
    "tf.keras.backend.squeeze": lambda x: K.squeeze(x[:, None], 1),
    "tf.keras.backend.stop_gradient": lambda x: K.stop_gradient(x) * x,
    "tf.keras.backend.switch": lambda x, y: K.switch(x > 0.0, x, y),
    "tf.keras.backend.zeros": lambda x: x + K.zeros((4,)),
}  # fmt: skip
