"""Layers and optimisers of `ipu_tensorflow_addons`, compared with Keras's own and formulas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402

from poptorch_emu import Error  # noqa: E402
from poptorch_emu.companions.ipu_tensorflow_addons.keras import layers, optimizers  # noqa: E402

pytestmark = pytest.mark.feature("ipu_tensorflow_addons.keras", fidelity="exact")

X = np.random.default_rng(0).normal(size=(6, 5, 4)).astype("float32")  # Batch, time, features.


def numbers(value) -> np.ndarray:
    return keras.ops.convert_to_numpy(value)


def computed(layer, *inputs):
    """Returns the result of a layer on an IPU."""
    models.use_ipus(1)
    with models.SCOPE():
        symbols = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in inputs]
        model = keras.Model(symbols, layer(*symbols))
        return model.predict(list(inputs), batch_size=len(inputs[0]), verbose=0)


@pytest.mark.parametrize("returns_sequences", [False, True])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_recurrent_layer_then_is_that_of_keras(name: str, returns_sequences: bool) -> None:
    settings = {"return_sequences": returns_sequences, "return_state": True}
    own, of_keras = (getattr(kind, name)(3, **settings) for kind in (layers, keras.layers))
    of_keras.build(X.shape)
    own.build(X.shape)
    own.set_weights(of_keras.get_weights())
    for one, other in zip(computed(own, X), of_keras(X), strict=True):
        np.testing.assert_allclose(one, numbers(other), atol=1e-5)
    assert getattr(layers, f"Popnn{name}") is getattr(layers, name)
    assert own.kernel.shape == (4, own.biases.shape[-1])


def test_recurrent_layer_when_the_time_comes_first_then_so_does_its_output() -> None:
    first = layers.LSTM(3, return_sequences=True, time_major=True)
    plain = layers.LSTM(3, return_sequences=True)
    by_time = X.swapaxes(0, 1)
    wanted = numbers(plain(X))
    first.build(by_time.shape)
    first.set_weights(plain.get_weights())
    np.testing.assert_allclose(numbers(first(by_time)).swapaxes(0, 1), wanted, atol=1e-6)
    assert first.compute_output_shape((5, 6, 4)) == (5, 6, 3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use_bias": False}, "use_bias=False"),
        ({"recurrent_dropout": 0.5}, "recurrent_dropout"),
        ({"go_backwards": True}, "go_backwards"),
        ({"activation": "elu"}, "activation='elu'.*tanh"),
    ],
)
def test_recurrent_layer_when_a_setting_is_not_offered_then_keras_is_named(settings, said) -> None:
    with pytest.raises(ValueError, match=f"{said}.*keras.layers.GRU"):
        layers.PopnnGRU(3, **settings)


def test_mask_then_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="LSTM does not support a mask"):
        layers.LSTM(3)(X, mask=np.ones((6, 5), bool))


def normalized(x, groups: int, *, is_strided: bool, axis: int):
    """Normalises by loops, following the definition."""
    x = np.moveaxis(x, axis, -1)
    found, channels = np.empty_like(x), x.shape[-1]
    for group in range(groups):
        mine = [
            channel
            for channel in range(channels)
            if group == (channel % groups if is_strided else channel // (channels // groups))
        ]
        for row in range(len(x)):
            part = x[row][..., mine]
            found[row][..., mine] = (part - part.mean()) / np.sqrt(part.var() + 1e-3)
    return np.moveaxis(found, -1, axis)


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("is_strided", [False, True])
def test_groups_then_are_normalised_as_defined(axis: int, is_strided: bool) -> None:
    x = np.random.default_rng(0).normal(size=(3, 6, 5, 6)).astype("float32")
    layer = layers.GroupNormalization(3, axis, strided_channel_grouping=is_strided)
    wanted = normalized(x, 3, is_strided=is_strided, axis=axis)
    np.testing.assert_allclose(computed(layer, x), wanted, atol=1e-5)
    wanted = normalized(x, 6, is_strided=True, axis=axis)
    np.testing.assert_allclose(computed(layers.InstanceNorm(axis), x), wanted, atol=1e-5)
    with pytest.raises(ValueError, match="4 groups, which do not divide the 6 channels"):
        layers.GroupNorm(4).build(x.shape)
    with pytest.raises(ValueError, match="must be 1 or -1, not 2"):
        layers.GroupNorm(2, 2)


@pytest.mark.parametrize("axis", [1, 2, -1, [1, 2], [2, 1], [1, 3], [-1, 1], (1, 2, 3)])
def test_features_of_any_axes_then_are_normalised_as_defined(axis) -> None:
    x = np.random.default_rng(0).normal(size=(3, 6, 5, 4)).astype("float32")
    layer = layers.LayerNormalization(axis, epsilon=0.1)
    layer.build(x.shape)
    generator = np.random.default_rng(1)
    layer.set_weights([generator.normal(size=each.shape) for each in layer.weights])
    axes = sorted(axis) if isinstance(axis, (list, tuple)) else [axis]  # As Keras stores gamma.
    gamma, beta = (
        np.moveaxis(each.numpy()[(None,) * (4 - len(axes))], range(4 - len(axes), 4), axes)
        for each in (layer.gamma, layer.beta)
    )
    axes = tuple(axes)
    x_centred = x - x.mean(axes, keepdims=True)
    wanted = x_centred / np.sqrt(x.var(axes, keepdims=True) + 0.1) * gamma + beta
    np.testing.assert_allclose(computed(layer, x), wanted, atol=1e-5)


def test_layers_by_other_arguments_then_are_those_of_keras() -> None:
    rows = np.array([[1, 5], [3, 3]], np.int32)
    table = layers.Embedding(6, 4, serialization_factor=2)
    found = computed(table, rows)
    np.testing.assert_array_equal(found, table.get_weights()[0][rows])
    dense = layers.SerialDense(3, 2, "kernel_rows")
    found = computed(dense, X[:, 0])
    kernel, bias = dense.get_weights()
    np.testing.assert_allclose(found, X[:, 0] @ kernel + bias, atol=1e-5)
    np.testing.assert_array_equal(computed(layers.RecomputationCheckpoint(), X), X)
    np.testing.assert_array_equal(computed(layers.AssumeEqualAcrossReplicas(), X), X)
    with pytest.raises(NotImplementedError, match="mask_zero"):
        layers.Embedding(6, 4, mask_zero=True)
    with pytest.raises(ValueError, match="=4 does not divide the 6 rows"):
        layers.Embedding(6, 4, serialization_factor=4)
    with pytest.raises(Error, match="EffectiveTransformer is not offered"):
        layers.EffectiveTransformer(3)


def test_ctc_loss_then_is_the_mean_over_all_paths() -> None:
    """Two steps and one label: the paths are label-label, label-blank and blank-label."""
    data = np.log(np.array([[[0.6, 0.4]], [[0.3, 0.7]]], np.float32))  # Time, batch, classes.
    loss = layers.CTCLoss()(np.array([[1]]), data, np.array([1]), np.array([2]))
    wanted = -np.log(0.4 * 0.7 + 0.4 * 0.3 + 0.6 * 0.7)
    np.testing.assert_allclose(numbers(loss), [wanted], atol=1e-6)


HALF = keras.initializers.Constant(0.5)
LAYERS = {
    "Embedding": lambda: layers.Embedding(6, 4, HALF, 2),
    "LSTM": lambda: layers.LSTM(5, return_sequences=True, time_major=True, dropout=0.25),
    "GRU": lambda: layers.GRU(5, reset_after=False, recurrent_activation="relu"),
    "groups": lambda: layers.GroupNormalization(2, -1, True, True, 0.5, HALF, HALF, False),
    "instances": lambda: layers.InstanceNormalization(1, gamma_initializer=HALF),
    "features": lambda: layers.LayerNormalization(-1, 0.5),
    "dense": lambda: layers.SerialDense(3, 2, "kernel_rows", use_bias=False),
    "equal": lambda: layers.AssumeEqualAcrossReplicas(True),
    "checkpoint": layers.RecomputationCheckpoint,
    "dropout": lambda: layers.Dropout(0.25),
}


def test_layers_when_saved_then_are_loaded_with_all_their_settings(tmp_path: Path) -> None:
    rows = np.array([[1, 5, 2, 0], [3, 3, 1, 4]], np.int32)
    symbols = [keras.Input((4,), dtype="int32"), keras.Input(X.shape[1:])]
    made = {name: make() for name, make in LAYERS.items()}
    found = [made.pop("Embedding")(symbols[0]), *(layer(symbols[1]) for layer in made.values())]
    model = keras.Model(symbols, found)
    model.compile(lamb(), "mse")
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = [rows, X[:2]]
    for one, other in zip(model(inputs), loaded(inputs), strict=True):
        np.testing.assert_array_equal(numbers(one), numbers(other))
    for one, other in zip(model.layers, loaded.layers, strict=True):
        assert type(one) is type(other) and one.get_config() == other.get_config()
    assert loaded.get_layer(made["dense"].name).serialization_factor == 2
    assert type(loaded.optimizer) is optimizers.LAMBIpuOptimizer
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert loaded.optimizer.weight_decay_rate == 0.1 and loaded.optimizer.patterns == ["bias"]


def lamb():
    return optimizers.LAMBIpuOptimizer(
        0.05, weight_decay_rate=0.1, exclude_from_weight_decay=["bias"]
    )


OPTIMIZERS = {
    "Adam": (
        lambda: optimizers.AdamIpuOptimizer(0.01, m_dtype="float16"),
        lambda: keras.optimizers.Adam(0.01),
    ),
    "SGD": (
        lambda: optimizers.SGDIpuOptimizer(0.1, momentum=0.9, momentum_accum_dtype="float32"),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    ),
    "LAMB": (lamb, lamb),
    "Lamb": (lambda: keras.optimizers.Lamb(0.05), lambda: keras.optimizers.Lamb(0.05)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_then_trains_as_eager_keras(name: str) -> None:
    models.use_ipus(1)
    x, labels = models.data()
    trained = []
    for make, is_on_ipus in zip(OPTIMIZERS[name], (True, False), strict=True):
        with models.scope(is_on_ipus):
            model = models.mlp()
            for variable in model.trainable_variables:
                variable.assign_add(0.01 * np.ones(variable.shape))  # Biases get a norm above 0.
            model.compile(make(), models.cross_entropy())
            model.fit(x, labels, batch_size=8, shuffle=False, epochs=2, verbose=0)
        trained.append(model)
    assert models.largest_difference(*trained) < 2e-5


def test_first_step_of_lamb_then_is_its_formula() -> None:
    weight = keras.Variable(np.array([3.0, 4.0], np.float32), name="kernel")
    optimizer = optimizers.LAMBIpuOptimizer(0.1, weight_decay_rate=0.5, epsilon=0.0)
    optimizer.apply([np.array([2.0, -2.0], np.float32)], [weight])
    direction = np.array([1 + 1.5, -1 + 2.0])
    wanted = np.array([3.0, 4.0]) - 0.1 * 5 / np.linalg.norm(direction) * direction
    np.testing.assert_allclose(weight.numpy(), wanted, rtol=1e-5)


def test_optimizer_when_a_setting_is_not_offered_then_is_refused() -> None:
    with pytest.raises(ValueError, match="debiasing=False"):
        optimizers.AdamIpuOptimizer(debiasing=False)
    with pytest.raises(ValueError, match="each weight has its ratio"):
        optimizers.LAMBIpuOptimizer(exclude_from_layer_adaptation=["bias"])
