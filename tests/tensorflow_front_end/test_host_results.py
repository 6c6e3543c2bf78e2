"""Results of a program that calls or saves a model on the host."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import tensorflow_programs as programs  # noqa: E402

import poptorch_emu as poptorch  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: functions on the device", fidelity="exact")

X = np.ones((2, 4), np.float32)


def test_result_of_a_model_when_given_an_array_then_is_a_tensor_of_tensorflow() -> None:
    programs.strategy()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    wanted = X @ model.get_weights()[0]
    result = model(X)
    for found in (result.numpy(), np.array(result), tf.convert_to_tensor(result)):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert float(tf.reduce_mean(model(X))) == pytest.approx(float(wanted.mean()))
    for found, value in (
        (result[1].numpy(), wanted[1]),
        (np.asarray(result + 1), wanted + 1),
        (np.mean(result), wanted.mean()),
        (max(result[0]).numpy(), wanted[0].max()),
        (keras.ops.convert_to_numpy(result * 2), wanted * 2),
    ):
        np.testing.assert_allclose(found, value, rtol=1e-6)
    assert isinstance(result, tf.Tensor) and result.shape == [2, 3] and result.dtype == "float32"


@pytest.mark.parametrize(
    "compute",
    [
        lambda w: w * 2,
        lambda w: 1 - w,
        lambda w: -w / 3.0,
        lambda w: abs(w) ** 2,
        lambda w: w @ tf.transpose(w),
        lambda w: w > 0,
        lambda w: w[1:, ::-1],
        lambda w: list(w)[1],
        lambda w: tf.norm(w),
        lambda w: tf.where(w > 0, w, tf.zeros_like(w)),
        lambda w: w * tf.Variable(2.0) + tf.ones((3,)),
        lambda w: tf.linalg.global_norm([w, w]),
        lambda w: tf.keras.backend.softmax(w),
        lambda w: tf.keras.backend.repeat_elements(w, 2, axis=0),
        lambda w: tf.linalg.matmul(w, w, transpose_a=True),
    ],
)
def test_expression_with_a_weight_on_the_host_then_is_a_tensor_of_tensorflow(compute) -> None:
    programs.strategy()
    layer = keras.layers.Dense(3)
    layer.build((None, 4))
    found = compute(layer.kernel)
    assert isinstance(found, tf.Tensor)
    wanted = compute(tf.constant(layer.get_weights()[0]))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6)


def test_weight_then_answers_questions_about_tensors_as_in_keras_on_tensorflow() -> None:
    programs.strategy()
    layer = keras.layers.Dense(3)
    layer.build((None, 4))
    kernel, shape = layer.kernel, tf.TensorShape([4, 3])
    assert tf.is_tensor(kernel)
    assert kernel.shape == [4, 3] and kernel.shape == (4, 3) and kernel.shape == shape
    assert kernel.shape[1:] == [3] and kernel.shape != [3, 4] and kernel.shape != shape[:1]
    assert (kernel.shape.rank, kernel.shape.as_list()) == (shape.rank, shape.as_list())
    assert tf.broadcast_static_shape(kernel.shape, layer.bias.shape) == shape
    np.testing.assert_array_equal(kernel.value.numpy(), layer.get_weights()[0])


def test_weight_when_assigned_an_expression_on_the_host_then_has_its_values() -> None:
    programs.strategy()
    layer = keras.layers.Dense(3)
    layer.build((None, 4))
    kernel, wanted = layer.kernel, layer.get_weights()[0] * np.float32(0.9)
    np.testing.assert_allclose(kernel.assign(kernel * 0.9).numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(kernel), wanted, rtol=1e-6)
    np.testing.assert_allclose(keras.ops.mean(kernel).numpy(), wanted.mean(), atol=1e-7)
    np.testing.assert_allclose(float(tf.reduce_mean(kernel)), wanted.mean(), atol=1e-7)


def test_gradient_of_a_model_on_the_host_then_the_way_out_is_said() -> None:
    programs.strategy()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.constant(X)))
    for sources in (model.trainable_variables, model.trainable_variables[0].value):
        with pytest.raises(poptorch.Error, match="for weights of Keras .* strategy.run"):
            tape.gradient(loss, sources)


def test_layer_with_a_variable_of_tensorflow_then_fit_says_the_way_out() -> None:
    class Count(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.count = tf.Variable(0.0, trainable=False)

        def call(self, x):
            self.count.assign_add(1.0)
            return x

    with programs.strategy().scope():
        model = keras.Sequential([keras.Input((4,)), Count(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(poptorch.Error, match="a variable of TensorFlow.* self.add_weight"):
        model.fit(X, X[:, :1], batch_size=2, verbose=0)


def test_method_of_other_strategies_then_the_message_says_what_there_is() -> None:
    strategy = programs.strategy()
    with pytest.raises(AttributeError, match="no other methods of tf.distribute.Strategy"):
        strategy.reduce("SUM", tf.constant([1.0]), 0)
    assert not hasattr(strategy, "extended")


def test_layer_normalization_when_of_an_inner_axis_then_normalizes_this_axis() -> None:
    """All sizes are equal, so that no error would tell that other axes were taken."""
    x = np.random.default_rng(0).normal(size=(3, 3, 3)).astype(np.float32)
    found = keras.layers.LayerNormalization(axis=1)(x)
    wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-5)
    found = keras.layers.RMSNormalization(axis=1, epsilon=1e-3)(x)
    wanted = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-5)


def test_model_when_saved_into_a_missing_folder_then_is_there(tmp_path) -> None:
    programs.strategy()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.save(tmp_path / "models" / "new" / "model.keras")
    model.save_weights(tmp_path / "weights" / "model.weights.h5")
    found = keras.models.load_model(tmp_path / "models" / "new" / "model.keras")
    found.load_weights(tmp_path / "weights" / "model.weights.h5")
    np.testing.assert_array_equal(found.get_weights()[0], model.get_weights()[0])
