"""TensorFlow's functions on values of the device, beside TensorFlow itself."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import tensorflow_programs as programs  # noqa: E402

import poptorch_emu as poptorch  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402
from poptorch_emu.keras.tensorflow.functions.program_functions import on_device  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: functions on the device", fidelity="exact")

NEAR = 1e-6
GENERATOR = np.random.default_rng(3)
X = GENERATOR.uniform(0.1, 0.9, size=(4, 6)).astype(np.float32)
Y = GENERATOR.normal(size=(4, 6)).astype(np.float32)
INDICES = np.array([[3, 0], [1, 1]], np.int32)
IMAGES = GENERATOR.normal(size=(2, 6, 6, 3)).astype(np.float32)
KERNEL = GENERATOR.normal(size=(3, 3, 3, 4)).astype(np.float32)

UNARY = (
    "abs acos acosh asin asinh atan atanh math.ceil cos cosh math.erf exp math.expm1 floor "
    "math.is_finite math.is_inf math.is_nan math.log math.log1p negative math.reciprocal "
    "math.rint round math.rsqrt sigmoid sign sin sinh math.softplus sqrt square tan tanh nn.elu "
    "nn.relu nn.relu6 nn.selu nn.softsign stop_gradient identity nn.l2_loss nn.gelu nn.leaky_relu "
    "nn.silu nn.swish zeros_like ones_like nn.tanh nn.sigmoid math.square math.abs"
).split()
BINARY = (
    "add subtract multiply divide truediv math.floordiv math.floormod pow maximum minimum equal "
    "not_equal greater greater_equal less less_equal math.squared_difference math.atan2 "
    "math.divide_no_nan math.multiply_no_nan"
).split()
REDUCTIONS = (
    "reduce_mean reduce_sum reduce_max reduce_min reduce_prod math.reduce_std math.reduce_variance "
    "reduce_logsumexp math.reduce_euclidean_norm"
).split()
OPERATORS = "add sub mul truediv floordiv mod pow lt le gt ge eq ne matmul".split()
Calls = dict[str, Callable[..., Any]]

# Functions of x and y, float32 [4, 6].
CALLS: Calls = {
    "cast": lambda x, y: tf.cast(x * 10, tf.int32),
    "saturate_cast": lambda x, y: tf.saturate_cast(y * 100, tf.int8),
    "saturate_cast of large numbers": lambda x, y: tf.saturate_cast(y * 1e10, tf.int32),
    "saturate_cast to a short type": lambda x, y: tf.saturate_cast(y * 1e5, tf.float16),
    "cast to a name": lambda x, y: tf.cast(y > 0, "float32"),
    "cast to the type of another": lambda x, y: tf.cast(y > 0, x.dtype),
    "reshape": lambda x, y: tf.reshape(x, [2, -1]),
    "reshape by tf.shape": lambda x, y: tf.reshape(x, [tf.shape(x)[1], tf.shape(x)[0]]),
    "reshape by get_shape": lambda x, y: tf.reshape(x, x.get_shape().as_list()[::-1]),
    "reshape by as_list": lambda x, y: tf.reshape(x, x.shape.as_list()[::-1]),
    "expand_dims": lambda x, y: tf.expand_dims(x, axis=1),
    "squeeze": lambda x, y: tf.squeeze(tf.expand_dims(x, 0), [0]),
    "squeeze all": lambda x, y: tf.squeeze(tf.expand_dims(x, 0)),
    "transpose": lambda x, y: tf.transpose(x),
    "transpose by perm": lambda x, y: tf.transpose(tf.expand_dims(x, 0), perm=[2, 0, 1]),
    "concat": lambda x, y: tf.concat([x, y], axis=-1),
    "concat with a constant": lambda x, y: tf.concat([tf.zeros([4, 1]), x, y], 1),
    "stack": lambda x, y: tf.stack([x, y], axis=1),
    "unstack": lambda x, y: tf.unstack(x, axis=1)[2],
    "split": lambda x, y: tf.split(x, 3, axis=1)[1],
    "split by sizes": lambda x, y: tf.split(x, [1, 3, 2], 1)[1],
    "split with a rest": lambda x, y: tf.split(x, [1, -1], 1)[1],
    "tile": lambda x, y: tf.tile(x, [2, 1]),
    "pad": lambda x, y: tf.pad(x, [[1, 0], [2, 3]], constant_values=2),
    "pad by reflection": lambda x, y: tf.pad(x, tf.constant([[1, 1], [0, 2]]), "REFLECT"),
    "slice": lambda x, y: tf.slice(x, [1, 2], [2, -1]),
    "gather": lambda x, y: tf.gather(x, [2, 0], axis=1),
    "gather rows": lambda x, y: tf.gather(x, tf.constant([[3, 1], [0, 0]])),
    "one_hot": lambda x, y: tf.one_hot(tf.cast(x * 5, tf.int32), 5),
    "one_hot by values": lambda x, y: tf.one_hot(tf.cast(x * 5, tf.int32), 5, 2.0, -1.0, axis=0),
    "argmax": lambda x, y: tf.argmax(x, axis=-1),
    "argmax of columns": lambda x, y: tf.argmax(x),
    "argmin": lambda x, y: tf.argmin(x, 1, output_type=tf.int32),
    "where": lambda x, y: tf.where(y > 0, x, 0.0),
    "where both": lambda x, y: tf.where(tf.greater(x, y), x, y),
    "clip_by_value": lambda x, y: tf.clip_by_value(y, -0.5, 0.5),
    "clip_by_norm": lambda x, y: tf.clip_by_norm(y, 0.5),
    "clip_by_global_norm": lambda x, y: tf.clip_by_global_norm([x, y], 1.5)[0][1],
    "global_norm": lambda x, y: tf.linalg.global_norm([x, y]),
    "norm": lambda x, y: tf.norm(y),
    "norm of rows": lambda x, y: tf.norm(y, axis=1, keepdims=True),
    "norm of order 1": lambda x, y: tf.norm(y, ord=1, axis=1),
    "matmul": lambda x, y: tf.matmul(x, y, transpose_b=True),
    "matmul with a constant": lambda x, y: tf.constant(X.T) @ y,
    "linalg.matmul": lambda x, y: tf.linalg.matmul(x, y, transpose_a=True),
    "tensordot": lambda x, y: tf.tensordot(x, y, axes=[[0], [0]]),
    "einsum": lambda x, y: tf.einsum("ij,kj->ik", x, y),
    "add_n": lambda x, y: tf.add_n([x, y, x]),
    "softmax": lambda x, y: tf.nn.softmax(y),
    "softmax of columns": lambda x, y: tf.nn.softmax(y, axis=0),
    "log_softmax": lambda x, y: tf.nn.log_softmax(y),
    "cumsum": lambda x, y: tf.cumsum(y, axis=1),
    "cumsum backwards": lambda x, y: tf.cumsum(y, axis=1, exclusive=True, reverse=True),
    "reverse": lambda x, y: tf.reverse(y, axis=[1]),
    "roll": lambda x, y: tf.roll(y, shift=2, axis=1),
    "repeat": lambda x, y: tf.repeat(y, 2, axis=0),
    "sort": lambda x, y: tf.sort(y, direction="DESCENDING"),
    "argsort": lambda x, y: tf.argsort(y),
    "top_k": lambda x, y: tf.math.top_k(y, k=2)[0],
    "broadcast_to": lambda x, y: tf.broadcast_to(x, [3, 4, 6]),
    "logical": lambda x, y: tf.logical_and(x > 0.3, tf.logical_not(y > 0)),
    "logical_or": lambda x, y: tf.logical_or(x > 0.3, y > 0),
    "reduce_any": lambda x, y: tf.reduce_any(y > 1, axis=1),
    "reduce_all": lambda x, y: tf.reduce_all(y > -1, axis=0, keepdims=True),
    "count_nonzero": lambda x, y: tf.math.count_nonzero(y > 0, axis=1),
    "segment_sum": lambda x, y: tf.math.unsorted_segment_sum(y, [0, 2, 0, 1], 3),
    "segment_mean": lambda x, y: tf.math.unsorted_segment_mean(y, [0, 2, 0, 0], 3),
    "segment_max": lambda x, y: tf.math.unsorted_segment_max(y, [0, 2, 1, 1], 3),
    "l2_normalize": lambda x, y: tf.nn.l2_normalize(y, axis=1),
    "moments": lambda x, y: tf.nn.moments(y, axes=[0])[1],
    "bias_add": lambda x, y: tf.nn.bias_add(y, tf.range(6.0)),
    "sparse cross entropy": lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=[1, 0, 5, 2], logits=y
    ),
    "cross entropy": lambda x, y: tf.nn.softmax_cross_entropy_with_logits(labels=x, logits=y),
    "sigmoid cross entropy": lambda x, y: tf.nn.sigmoid_cross_entropy_with_logits(
        labels=x, logits=y
    ),
    "map_fn": lambda x, y: tf.map_fn(lambda row: row * 2, x),
    "constant on the left": lambda x, y: tf.constant(2.0) * x + tf.ones([6]) - y,
    "constant on the right": lambda x, y: (x - tf.constant(1.0)) / tf.fill([4, 1], 3.0),
    "compared with a constant": lambda x, y: tf.constant(0.5) < x,
    "a variable of TensorFlow": lambda x, y: x * tf.Variable(3.0),
    "rank": lambda x, y: x * tf.cast(tf.rank(x), tf.float32),
    "size": lambda x, y: x / tf.cast(tf.size(x), tf.float32),
    "zeros_like of a type": lambda x, y: tf.zeros_like(x, dtype=tf.int32),
    "ensure_shape": lambda x, y: tf.ensure_shape(x, [4, 6]),
    "name_scope": lambda x, y: _in_scope(x),
    "type": lambda x, y: x * float(x.dtype == tf.float32) + float(tf.float32 == y.dtype),
    "is_tensor": lambda x, y: x * float(tf.is_tensor(x)),
}


def _in_scope(x):
    with tf.name_scope("scope"), tf.control_dependencies([]):
        return tf.identity(x, name="x")


def _found(path: str):
    found = tf
    for name in path.split("."):
        found = getattr(found, name)
    return found


for _name in UNARY:
    CALLS[_name] = lambda x, y, name=_name: _found(name)(x + 1 if name == "acosh" else x)
for _name in BINARY:
    CALLS[_name] = lambda x, y, name=_name: _found(name)(x, y)
    CALLS[f"{_name} with a number"] = lambda x, y, name=_name: _found(name)(x, 2.0)
    CALLS[f"{_name} with a constant"] = lambda x, y, name=_name: _found(name)(tf.constant(Y), x)
for _name in ("eq", "ne"):
    CALLS[f"{_name} of a constant"] = lambda x, y, name=_name: getattr(operator, name)(
        tf.constant(X[0]), x
    )
for _name in REDUCTIONS:
    CALLS[_name] = lambda x, y, name=_name: _found(name)(y)
    CALLS[f"{_name} of rows"] = lambda x, y, name=_name: _found(name)(y, axis=-1, keepdims=True)
    CALLS[f"{_name} of axes"] = lambda x, y, name=_name: _found(name)(y, axis=[0, 1])


@pytest.fixture(autouse=True, scope="module")
def _strategy():
    ipu.ipu_strategy.IPUStrategy()


def check_same(call, *arrays: np.ndarray) -> None:
    wanted = call(*map(tf.constant, arrays))
    result = on_device(call)(*(torch.from_numpy(each) for each in arrays))
    assert isinstance(result, torch.Tensor)
    assert str(result.dtype).removeprefix("torch.") == wanted.dtype.name
    np.testing.assert_allclose(result.numpy(), wanted.numpy(), atol=NEAR, rtol=1e-5)


@pytest.mark.parametrize("name", CALLS)
def test_function_then_returns_what_tensorflow_does(name: str) -> None:
    check_same(CALLS[name], X, Y)


# Functions that need more of a symbolic tensor than its shape and type.
NOT_SYMBOLIC = {
    "a variable of TensorFlow",
    "map_fn",
    "cast to the type of another",
    "type",
    "is_tensor",
}


@pytest.mark.parametrize("name", [name for name in CALLS if name not in NOT_SYMBOLIC])
def test_function_when_symbolic_then_makes_a_model_that_computes_it(name: str) -> None:
    inputs = [keras.Input(batch_shape=(4, 6)) for _ in range(2)]
    model = keras.Model(inputs, CALLS[name](*inputs))
    wanted = CALLS[name](tf.constant(X), tf.constant(Y))
    result = model([X, Y])
    np.testing.assert_allclose(result.numpy(), wanted.numpy(), atol=NEAR, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "arrays"),
    [
        (lambda i: tf.gather(tf.constant(X), i), [INDICES]),
        (lambda i: tf.gather_nd(tf.constant(X), i), [INDICES]),
        (lambda x, i: tf.gather_nd(x, i), [X, INDICES[:, :1]]),
        (lambda i: tf.nn.embedding_lookup(tf.constant(X), i), [INDICES]),
        (lambda i, x: tf.scatter_nd(i, x, [4, 2]), [INDICES, X[:2, 0].copy()]),
        (lambda x, i, u: tf.tensor_scatter_nd_update(x, i, u), [X, INDICES, Y[:2, 0].copy()]),
        (lambda x, k: tf.nn.conv2d(x, k, strides=2, padding="SAME"), [IMAGES, KERNEL]),
        (lambda x, k: tf.nn.conv2d(x, k, [1, 1, 1, 1], "VALID"), [IMAGES, KERNEL]),
        (lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 2, 2, 1], "SAME"), [IMAGES, KERNEL]),
        (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), [IMAGES]),
        (lambda x: tf.nn.avg_pool2d(x, [1, 2, 2, 1], [1, 2, 2, 1], "VALID"), [IMAGES]),
        (lambda x: tf.reduce_mean(x, axis=[1, 2]), [IMAGES]),
        (lambda x: tf.transpose(x, [0, 3, 1, 2]), [IMAGES]),
    ],
)
def test_function_of_other_tensors_then_returns_what_tensorflow_does(call, arrays) -> None:
    check_same(call, *arrays)


def test_operators_in_a_function_then_take_what_the_host_has_on_both_sides(caplog) -> None:
    square, other = X[:, :4].copy(), Y[:, :4].copy()
    other[1] = square[1]
    hosts = {
        "constant": tf.constant(other),
        "variable": tf.Variable(other),
        "one": tf.constant(2.0),
    }

    def compute(x):
        found = {}
        for name in OPERATORS:
            for kind, host in hosts.items():
                if (name, kind) != ("matmul", "one"):
                    found[f"{name} {kind}"] = getattr(operator, name)(host, x)
                    found[f"{kind} {name}"] = getattr(operator, name)(x, host)
        return found

    wanted = compute(tf.constant(square))
    found = programs.strategy().run(compute, args=[square])
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        np.testing.assert_allclose(found[name], value, atol=NEAR, rtol=1e-5, err_msg=name)
    assert "Expected an IPU tensor" not in caplog.text


@pytest.mark.parametrize("name", ["reduce_mean", "concat with a constant", "cumsum backwards"])
def test_function_when_its_values_are_of_the_host_then_is_tensorflows_own(name: str) -> None:
    assert isinstance(CALLS[name](tf.constant(X), tf.constant(Y)), tf.Tensor)


def sign_with_another_gradient(x):
    with tf.compat.v1.get_default_graph().gradient_override_map({"Sign": "Square"}):
        return tf.sign(x)


@pytest.mark.parametrize(
    ("function", "near"),
    [
        (lambda x: tf.math.igamma(x, x), "Igamma .*is not offered.* Use a function of keras.ops"),
        (lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[0.5]), "keras.ops"),
        (lambda x: tf.where(x > 0), "as many rows as there are"),
        (lambda x: tf.range(tf.reduce_sum(x)), "computed on the IPU"),
        (lambda x: tf.grad_pass_through(tf.round)(x), "custom_gradient .*tf.stop_gradient"),
        (sign_with_another_gradient, "gradient_override_map of Sign .*tf.stop_gradient"),
        (
            lambda x: tf.linalg.det(tf.cast(x[:, :4], tf.float16)),
            r"MatrixDeterminant of float16\[4, 4\] is not offered.* PyTorch says: .* tf.cast",
        ),
    ],
)
def test_function_without_a_counterpart_then_is_refused_on_the_device(function, near) -> None:
    strategy = programs.strategy()
    with pytest.raises(poptorch.Error, match=near):
        strategy.run(tf.function(function), args=[X])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.numpy(),
        lambda x: tf.constant(x),
        lambda x: x if tf.reduce_sum(x) > 0 else -x,
        lambda x: float(tf.reduce_sum(x)),
        lambda x: tf.print(x),
        lambda x: tf.py_function(lambda y: y, [x], tf.float32),
    ],
)
def test_value_when_the_host_would_need_it_then_is_refused(function) -> None:
    with pytest.raises((poptorch.Error, AttributeError, TypeError)):
        programs.strategy().run(function, args=[X])


def test_random_numbers_then_are_drawn_in_each_iteration() -> None:
    strategy = programs.strategy()
    with strategy.scope():
        queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def loop():
            for _ in tf.range(4):
                queue.enqueue(
                    {
                        "uniform": tf.random.uniform([1000], -1.0, 3.0),
                        "normal": tf.random.normal([1000], 1.0, 2.0),
                        "whole": tf.random.uniform((1000,), 0, 3, tf.int32),
                        "dropped": tf.nn.dropout(tf.ones([1000]) * queue_one(), 0.25),
                    }
                )

        def queue_one():
            return keras.ops.ones(1000)

        strategy.run(loop)
    found = {name: each.numpy() for name, each in queue.dequeue().items()}
    for each in found.values():
        assert len(np.unique(each, axis=0)) == 4, "Each iteration draws other numbers."
    assert found["uniform"].min() >= -1 and found["uniform"].max() < 3
    assert found["uniform"].mean() == pytest.approx(1, abs=0.1)
    assert found["normal"].mean() == pytest.approx(1, abs=0.15)
    assert found["normal"].std() == pytest.approx(2, abs=0.15)
    assert set(found["whole"].ravel()) == {0, 1, 2}
    assert found["dropped"].mean() == pytest.approx(1, abs=0.1)
