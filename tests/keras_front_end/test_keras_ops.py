"""Operations and utilities of the IPU's front end, compared with formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402

from poptorch_emu import Error  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("Keras: operations of the IPU", fidelity="exact")

X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")


def run(function, *args):
    """Returns the result of a function on an IPU."""
    strategy = ipu.ipu_strategy.IPUStrategy()
    return np.asarray(strategy.run(function, args=args))


@pytest.mark.parametrize(
    "function",
    [
        ipu.ops.cross_replica_ops.cross_replica_sum,
        ipu.cross_replica_ops.cross_replica_mean,
        ipu.cross_replica_ops.assume_equal_across_replicas,
        ipu.control_flow_ops.barrier,
        ipu.pipelining_ops.recomputation_checkpoint,
        lambda x: ipu.all_to_all_op.all_to_all(x, 0, 1, 1),
        ipu.outlined_function(lambda x: x),
        ipu.functional_ops.outlined_function(unique_sharding=True)(lambda x: x),
    ],
)
def test_operation_without_effect_on_one_replica_then_returns_what_it_got(function) -> None:
    models.use_ipus(1)
    np.testing.assert_array_equal(run(function, X), X)


def test_exchange_among_one_replica_then_is_that_replicas_own() -> None:
    models.use_ipus(1)
    np.testing.assert_array_equal(run(lambda x: ipu.all_to_all_op.all_gather(x, 1), X), X[None])
    assert run(lambda: ipu.replication_ops.replication_index()) == 0


REPLICAS = 2


def on_replicas(function, values):
    """Returns each replica's result for an array with one row for each replica."""
    tf = pytest.importorskip("tensorflow")
    models.use_ipus(REPLICAS)
    strategy = ipu.ipu_strategy.IPUStrategy()
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    with strategy.scope():
        iterator = iter(tf.data.Dataset.from_tensor_slices(values).repeat())
    strategy.run(lambda: queue.enqueue(function(next(iterator))))
    return queue.dequeue().numpy()[0]


EXCHANGES = {
    "sum": (ipu.cross_replica_ops.cross_replica_sum, lambda x: [x.sum(0)] * 2),
    "sum of a group of all": (
        lambda x: ipu.cross_replica_ops.cross_replica_sum(x, 2),
        lambda x: [x.sum(0)] * 2,
    ),
    "mean": (ipu.cross_replica_ops.cross_replica_mean, lambda x: [x.mean(0)] * 2),
    "gather": (lambda x: ipu.all_to_all_op.all_gather(x, 2), lambda x: [x] * 2),
    "exchange": (
        lambda x: ipu.all_to_all_op.all_to_all(x, 0, 1, 2),
        lambda x: [
            np.concatenate([x[0, rows], x[1, rows]], 1) for rows in np.split(np.arange(6), 2)
        ],
    ),
    "exchange along the other axis": (
        lambda x: ipu.all_to_all_op.all_to_all(x, 1, 0, 2),
        lambda x: [np.concatenate([x[0][:, c], x[1][:, c]], 0) for c in np.split(np.arange(4), 2)],
    ),
    "index": (
        lambda x: keras.ops.cast(ipu.replication_ops.replication_index(), x.dtype) + 0 * x,
        lambda x: [x[0] * 0, x[0] * 0 + 1],
    ),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_exchange_among_replicas_then_is_that_of_its_definition(name: str) -> None:
    function, wanted = EXCHANGES[name]
    values = np.stack([X, 10 * X + 1])
    np.testing.assert_allclose(on_replicas(function, values), np.stack(wanted(values)), atol=1e-5)


@pytest.mark.parametrize("value", [1, 3])
def test_exchange_among_another_number_of_replicas_then_is_refused(value: int) -> None:
    values = np.stack([X, X])
    with pytest.raises(ValueError, match=f"replication_factor={value}, but there are 2 replicas"):
        on_replicas(lambda x: ipu.all_to_all_op.all_gather(x, value), values)
    with pytest.raises(ValueError, match=f"replica_group_size={value}"):
        on_replicas(lambda x: ipu.cross_replica_ops.cross_replica_sum(x, value), values)
    with pytest.raises(ValueError, match="5 does not divide so"):
        on_replicas(lambda x: ipu.all_to_all_op.all_to_all(x, 0, 0, 2), values[:, :5])


def test_layer_when_it_sums_over_replicas_then_gradients_are_those_of_the_whole_batch() -> None:
    class Centred(keras.layers.Layer):
        def call(self, x):
            return x - ipu.cross_replica_ops.cross_replica_mean(keras.ops.mean(x, axis=0))

    class CentredByBatch(keras.layers.Layer):
        def call(self, x):
            return x - keras.ops.mean(x, axis=0)

    def trained(layer, replicas: int, rows: int):
        models.use_ipus(replicas)
        keras.utils.set_random_seed(0)
        with models.SCOPE():
            model = keras.Sequential(
                [keras.Input((12,)), keras.layers.Dense(5), layer, keras.layers.Dense(3)]
            )
            model.compile(keras.optimizers.SGD(0.1 / replicas), models.cross_entropy())
            x, labels = models.data()
            model.fit(x, labels, batch_size=rows, shuffle=False, verbose=0)
        return model

    apart, whole = trained(Centred(), 2, 4), trained(CentredByBatch(), 1, 8)
    assert models.largest_difference(apart, whole) < 1e-5


def test_gather_in_a_pipeline_of_several_replicas_then_takes_their_number() -> None:
    class Gathering(keras.layers.Layer):
        def call(self, x):
            rows = keras.ops.reshape(ipu.all_to_all_op.all_gather(x, REPLICAS), (-1, x.shape[-1]))
            return x - keras.ops.mean(rows, axis=0)

    models.use_ipus(2 * REPLICAS)
    with models.SCOPE():
        model = keras.Sequential([keras.Input((4,), 3), Gathering(), keras.layers.Rescaling(2.0)])
        model.set_pipeline_stage_assignment([0, 1])
        found = model.predict(X, batch_size=3, verbose=0)
    np.testing.assert_allclose(found, 2 * (X - X.mean(0)), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("gelu", lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("swish", lambda x: x / (1 + np.exp(-x))),
    ],
)
def test_activation_then_is_that_of_its_formula(name: str, formula) -> None:
    models.use_ipus(1)
    np.testing.assert_allclose(run(getattr(ipu.nn_ops, name), X), formula(X), atol=1e-6)


@pytest.mark.parametrize("dimension", ["a_columns", "a_rows_b_columns", "b_rows"])
def test_serialized_product_then_is_the_product(dimension: str) -> None:
    models.use_ipus(1)
    multiply = ipu.math_ops.serialized_matmul
    plain = run(lambda a: multiply(a, a, 2, dimension, transpose_b=True), X)
    np.testing.assert_allclose(plain, X @ X.T, atol=1e-6)
    other = run(lambda a: multiply(a, a, 2, dimension, transpose_a=True), X)
    np.testing.assert_allclose(other, X.T @ X, atol=1e-6)
    with pytest.raises(ValueError, match=f"=7 does not divide {dimension}"):
        run(lambda a: multiply(a, a, 7, dimension, transpose_b=True), X)


def test_serialized_product_when_the_dimension_is_unknown_then_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of .*not 'rows'"):
        ipu.math_ops.serialized_matmul(X, X, 2, "rows")


def test_lookup_then_gives_rows() -> None:
    models.use_ipus(1)
    rows = np.array([[3, 0], [5, 3]], np.int32)
    found = run(lambda x, y: ipu.embedding_ops.embedding_lookup(x, y, None, 3), X, rows)
    np.testing.assert_array_equal(found, X[rows])
    with pytest.raises(ValueError, match="=4 does not divide the 6 rows"):
        ipu.embedding_ops.embedding_lookup(X, rows, serialization_factor=4)
    with pytest.raises(Error, match="Embeddings on the host are not offered"):
        ipu.embedding_ops.create_host_embedding("name", [2], "float32")


def test_dropout_then_keeps_the_mean_and_draws_anew() -> None:
    models.use_ipus(1)
    ones = np.ones((100, 100), np.float32)
    strategy = ipu.ipu_strategy.IPUStrategy()

    def dropped(x):
        return ipu.rand_ops.dropout(x, 0.25)

    first, second = (np.asarray(strategy.run(dropped, args=[ones])) for _ in range(2))
    assert set(np.unique(first.round(5))) == {0, np.float32(1 / 0.75).round(5)}
    assert first.mean() == pytest.approx(1, abs=0.05) and (first != second).any()
    with pytest.raises(ValueError, match="at least 0 and less than 1, not 1"):
        ipu.rand_ops.dropout(ones, 1)


def test_utilities_then_say_what_is_configured() -> None:
    config = ipu.utils.create_ipu_config(profiling=False)
    assert ipu.utils.auto_select_ipus(config, 4) is config
    ipu.utils.configure_ipu_system(config)
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:0") == 4
    assert not ipu.utils.running_on_ipu_model()
    ipu.utils.move_variable_initialization_to_cpu()
    assert ipu.utils.IPUConfig is ipu.config.IPUConfig


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: ipu.utils.create_ipu_config(profilling=True), TypeError, "mean 'profiling'"),
        (lambda: ipu.utils.reset_ipu_seed("42"), ValueError, "integer of 64 bits, not '42'"),
        (lambda: ipu.utils.reset_ipu_seed(2**64), ValueError, "integer of 64 bits"),
        (lambda: ipu.ipu_strategy.IPUStrategy("/device:IPU:1"), ValueError, "has one device"),
        (lambda: ipu.pipelining_ops.PipelineStageOptions("x"), TypeError, "convolution_options"),
        (
            lambda: ipu.embedding_ops.embedding_lookup(X, [0], serialization_factor=0),
            ValueError,
            "does not divide",
        ),
        (lambda: ipu.ipu_outfeed_queue.IPUOutfeedQueue(buffer_depth="2"), ValueError, "1 or more"),
        (
            lambda: ipu.ipu_outfeed_queue.IPUOutfeedQueue(buffer_deph=2),
            TypeError,
            "Did you mean 'buffer_depth'",
        ),
    ],
)
def test_value_when_it_means_nothing_then_is_refused(call, kind, message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_seed_when_set_again_then_programs_draw_the_same() -> None:
    models.use_ipus(1)
    found = []
    for _ in range(2):
        ipu.utils.reset_ipu_seed(42)
        found.append(run(lambda x: ipu.rand_ops.dropout(x), np.ones(64, np.float32)))
    np.testing.assert_array_equal(*found)
