"""Arrays of NumPy in operations with values of the device."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import tensorflow_programs as programs  # noqa: E402

from poptorch_emu import Error  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: functions on the device", fidelity="exact")

OPERATORS = "add sub mul truediv floordiv mod pow lt le gt ge eq ne".split()
X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
ARRAYS = {
    "float32": X[::-1] / 2,
    "float64": X[:, ::-1].astype(np.float64),
    "int64": np.array([3, 2, 1]),
    "one number": np.array(2.0),
    "scalar": np.float64(2),
    "whole scalar": np.int64(2),
}
FUNCTIONS = {
    "maximum": lambda x, a: np.maximum(x, a),
    "exp": lambda x, a: np.exp(x) + a,
    "product": lambda x, a: a.T @ x,
    "product on the right": lambda x, a: x @ a.T,
    "np.matmul": lambda x, a: np.matmul(x, a.T),
    "both": lambda x, a: (a > 2) & (x > 2),
    "either": lambda x, a: (x > 2) | (a > 2),
    "negative": lambda x, a: np.negative(x) * a,
    "shape": lambda x, a: a * np.shape(x)[1] + x,
}


def results(value, array):
    """Returns the results of all operators, in both orders of the operands."""
    found = {}
    for name in OPERATORS:
        function = getattr(operator, name)
        found[name] = function(array, value)
        found[f"{name} reflected"] = function(value, array)
    return found


def check_same(found, wanted) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name].numpy(), value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", ARRAYS)
def test_array_with_a_value_of_the_device_then_means_what_numpy_says(kind: str, caplog) -> None:
    array = ARRAYS[kind]
    found = programs.strategy().run(lambda x: results(x, array), args=[tf.constant(X)])
    check_same(found, results(X, array))
    assert found["add"].dtype == tf.float32 and found["ne"].dtype == tf.bool
    assert not caplog.records


def test_functions_of_numpy_then_compute_on_the_device() -> None:
    array = ARRAYS["float32"]

    def run(x):
        return {name: function(x, array) for name, function in FUNCTIONS.items()}

    found = programs.strategy().run(run, args=[tf.constant(X)])
    check_same(found, {name: function(X, array) for name, function in FUNCTIONS.items()})


@pytest.mark.parametrize("owner", [tf, keras])
def test_array_with_a_variable_then_has_its_newest_value(owner) -> None:
    variable = owner.Variable(X)
    array = ARRAYS["float32"]

    def run():
        variable.assign_add(tf.ones([2, 3]))
        return results(variable, array)

    strategy = programs.strategy()
    for times in (1, 2):
        check_same(strategy.run(run), results(X + times, array))


class Centred(keras.layers.Layer):
    """A layer with arrays as left and as right operands."""

    def call(self, x):
        mean, width = np.linspace(-1, 1, 12), np.full(12, 2.0)
        return (1.0 / width) * (x - mean) + tf.cast(mean != x, x.dtype) * np.maximum(x, width)


def test_layer_with_arrays_then_computes_on_the_device_as_on_the_host() -> None:
    models.use_ipus()
    x, _ = models.data()
    with models.SCOPE():
        model = keras.Sequential([keras.Input((12,)), Centred()])
    model.compile()
    mean = np.linspace(-1, 1, 12)
    wanted = (x - mean) / 2 + np.maximum(x, 2)
    np.testing.assert_allclose(model.predict(x, verbose=0), wanted, rtol=1e-5, atol=1e-6)


REFUSED = {
    "sum": lambda x: np.sum(x),
    "concatenate": lambda x: np.concatenate([X, x]),
    "where": lambda x: np.where(x > 2, x, 0),
    "modf": lambda x: np.modf(x)[0],
    "add.outer": lambda x: np.add.outer(x, X),
    "add with out": lambda x: operator.iadd(X.copy(), x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_function_of_numpy_when_it_takes_elements_then_is_refused(name: str) -> None:
    with pytest.raises(Error, match=f"numpy.{name} takes arrays of the host, .*Use .*keras.ops"):
        programs.strategy().run(REFUSED[name], args=[tf.constant(X)])


def test_arrays_when_nothing_is_captured_then_meet_tensors_of_pytorch_as_before() -> None:
    tensor, array = torch.tensor([1.0, 2.0]), np.array([3.0, 4.0])
    with programs.strategy().scope():
        assert (tensor + array).dtype == torch.float64
        assert (array * tensor).tolist() == [3, 8]
        assert (np.float64(2) * tensor).dtype == torch.float32
        assert np.exp(tensor).dtype == torch.float32
        assert (array == tensor).tolist() == [False, False]
        assert isinstance(array * keras.Variable([1.0, 2.0]), np.ndarray)
        assert np.concatenate([array, tensor]).tolist() == [3, 4, 1, 2]
        assert np.add(array, 1, out=array) is array
