"""Results of a program that calls or saves a model on the host."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import tensorflow_programs as programs  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: functions on the device", fidelity="exact")

X = np.ones((2, 4), np.float32)


def test_result_of_a_model_when_given_an_array_then_has_numbers_and_a_gradient() -> None:
    programs.strategy()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    wanted = X @ model.get_weights()[0]
    result = model(X)
    for found in (result.numpy(), np.array(result), tf.convert_to_tensor(result)):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert float(tf.reduce_mean(model(X))) == pytest.approx(float(wanted.mean()))
    result.sum().backward()
    np.testing.assert_array_equal(model.trainable_variables[0].value.grad, np.full((4, 3), 2))


def test_model_when_saved_into_a_missing_folder_then_is_there(tmp_path) -> None:
    programs.strategy()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.save(tmp_path / "models" / "new" / "model.keras")
    model.save_weights(tmp_path / "weights" / "model.weights.h5")
    found = keras.models.load_model(tmp_path / "models" / "new" / "model.keras")
    found.load_weights(tmp_path / "weights" / "model.weights.h5")
    np.testing.assert_array_equal(found.get_weights()[0], model.get_weights()[0])
