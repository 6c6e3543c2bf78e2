"""The quick start of Keras on the IPU, in programs of our own: each step trains or computes.

Names are those that programs import under the runner; here they are the front end's own.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from keras.src.applications import resnet  # noqa: E402

from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: the quick start", fidelity="exact")

keras = tf.keras
ROWS, BATCH, CLASSES = 256, 8, 4


def configured(ipus: int) -> ipu.ipu_strategy.IPUStrategy:
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = ipus
    config.configure_ipu_system()
    return ipu.ipu_strategy.IPUStrategy()


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Returns pictures, each of which is brightest in one of four corners."""
    generator = np.random.default_rng(3)
    labels = generator.integers(0, CLASSES, ROWS).astype(np.int32)
    x = generator.normal(size=(ROWS, 8, 8, 1)).astype(np.float32) * 0.3
    for picture, label in zip(x, labels, strict=True):
        picture[4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 1
    return x, labels


def dataset() -> tf.data.Dataset:
    def cast(x, label):
        return tf.cast(x, tf.float32), tf.cast(label, tf.int32)

    data = tf.data.Dataset.from_tensor_slices(pictures()).shuffle(ROWS, seed=1)
    return data.batch(BATCH, drop_remainder=True).map(cast).repeat().prefetch(16)


def sequential() -> keras.Sequential:
    keras.utils.set_random_seed(5)
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def functional() -> keras.Model:
    keras.utils.set_random_seed(5)
    inputs = keras.Input((8, 8, 1), batch_size=BATCH)
    with keras_stage(0):
        x = keras.layers.Conv2D(4, 3, activation="relu", name="first")(inputs)
        x = keras.layers.Flatten()(x)
    with keras_stage(1):
        x = keras.layers.Dense(16, activation="relu")(x)
        outputs = keras.layers.Dense(CLASSES, activation="softmax", name="last")(x)
    return keras.Model(inputs, outputs)


def keras_stage(number: int):
    return ipu.keras.PipelineStage(number)


def compile_for(model, steps: int, added: int = 1, **settings) -> None:
    """Compiles a model.

    The rate is divided by `added`, the number of batches whose gradients are added.
    """
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(),
        optimizer=keras.optimizers.SGD(0.2 / added, momentum=0.5),
        metrics=["accuracy"],
        steps_per_execution=steps,
        **settings,
    )


def check_learns(model, **arguments) -> None:
    history = model.fit(
        dataset(), epochs=3, steps_per_epoch=64, shuffle=False, verbose=0, **arguments
    ).history
    assert history["loss"][-1] < history["loss"][0] / 2
    assert history["accuracy"][-1] > 0.95


def test_model_without_a_pipeline_then_fits_evaluates_and_predicts() -> None:
    with configured(1).scope():
        model = sequential()
        compile_for(model, 16)
        check_learns(model)
        loss, accuracy = model.evaluate(dataset(), steps=32, verbose=0)
        assert loss < 0.3 and accuracy > 0.95
        x, labels = pictures()
        classes = model.predict(x, batch_size=BATCH, verbose=0)
    assert classes.shape == (ROWS, CLASSES)
    assert (classes.argmax(axis=1) == labels).mean() > 0.95


def test_pipeline_of_a_sequential_model_then_learns() -> None:
    with configured(2).scope():
        model = sequential()
        model.set_pipeline_stage_assignment([0, 0, 1, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        model.print_pipeline_stage_assignment_summary(print_fn=lambda line: None)
        compile_for(model, 16, added=4)
        check_learns(model)


def test_pipeline_of_a_functional_model_then_learns() -> None:
    with configured(2).scope():
        model = functional()
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=4,
            pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Interleaved,
        )
        compile_for(model, 16, added=4)
        check_learns(model)


def test_pipeline_of_a_model_of_the_library_then_is_cut_by_the_names_of_its_layers() -> None:
    def blocks(x):
        for number in (2, 3):
            x = resnet.stack_residual_blocks_v1(x, 8, 2, name=f"conv{number}")
        return x

    with configured(2).scope():
        keras.utils.set_random_seed(1)
        # The model is built like those of the library, with fewer blocks and channels.
        model = resnet.ResNet(
            blocks, False, True, weights=None, input_shape=(32, 32, 3), classes=CLASSES
        )
        stage = 0
        assignments = model.get_pipeline_stage_assignment()
        for assignment in assignments:
            if assignment.layer.name.startswith("conv3_block1"):
                stage = 1
            assignment.pipeline_stage = stage
        model.set_pipeline_stage_assignment(assignments)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        model.compile("sgd", loss="sparse_categorical_crossentropy", steps_per_execution=4)
        x = np.random.default_rng(0).normal(size=(8, 32, 32, 3)).astype(np.float32)
        labels = np.arange(8, dtype=np.int32) % CLASSES
        before = model.get_layer("conv3_block2_3_conv").get_weights()[0].copy()
        history = model.fit(x, labels, batch_size=2, verbose=0).history
        after = model.get_layer("conv3_block2_3_conv").get_weights()[0]
    assert np.isfinite(history["loss"]).all() and (before != after).any()


@pytest.mark.parametrize("replicas", [1, 2])
def test_accumulation_and_replicas_then_learn(replicas: int) -> None:
    with configured(replicas).scope():
        model = sequential()
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
        compile_for(model, 8, added=4 * replicas)
        check_learns(model)


Recomputation = ipu.ops.pipelining_ops.RecomputationMode


def test_memory_options_then_change_no_number() -> None:
    found = []
    for options in (
        {},
        {
            "recomputation_mode": Recomputation.RecomputeThenBackpropagate,
            "offload_weight_update_variables": True,
            "offload_activations": True,
            "offload_gradient_accumulation_buffers": True,
            "replicated_optimizer_state_sharding": True,
        },
    ):
        config = ipu.config.IPUConfig()
        config.auto_select_ipus = 4
        config.allow_recompute = bool(options)
        config.configure_ipu_system()
        with ipu.ipu_strategy.IPUStrategyV1().scope():
            model = sequential()
            model.set_pipeline_stage_assignment([0, 0, 1, 1])
            model.set_pipelining_options(4, **options)
            compile_for(model, 8, added=8)
            x, labels = pictures()
            model.fit(x, labels, batch_size=BATCH, shuffle=False, verbose=0)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_queue_when_read_after_the_loop_then_has_all_values_by_name() -> None:
    strategy = configured(1)
    numbers = tf.data.Dataset.range(100).map(lambda x: tf.cast(tf.fill([4], x), tf.float32))
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def compute(iterator):
        for _ in tf.range(10):
            value = next(iterator)
            queue.enqueue({"value": value, "sum": tf.reduce_sum(value * 2.0)})

    with strategy.scope():
        iterator = iter(numbers)
        strategy.run(compute, args=[iterator])
        found = queue.dequeue()
    assert found["value"].shape == (10, 4)
    np.testing.assert_array_equal(found["sum"].numpy(), np.arange(10) * 8)


def test_training_loop_when_its_queue_is_read_by_a_thread_then_both_end() -> None:
    strategy, steps = configured(1), 200
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue(ipu.ipu_outfeed_queue.IPUOutfeedMode.ALL)
    with strategy.scope():
        model = sequential()
        optimizer = keras.optimizers.RMSprop(0.003)
        loss_of = keras.losses.SparseCategoricalCrossentropy(reduction="none")
        iterator = iter(dataset())

    def step(x, labels):
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            losses = loss_of(labels, predictions)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        queue.enqueue(loss)

    @tf.function(jit_compile=True)
    def loop(iterator, count):
        for _ in tf.range(count):
            step(*next(iterator))

    seen: list[float] = []

    def read() -> None:
        while not queue.enqueued:
            time.sleep(0.01)
        while len(seen) < steps:
            seen.extend(float(loss) for loss in queue)
            time.sleep(0.001)

    reader = threading.Thread(target=read)
    reader.start()
    strategy.run(loop, args=[iterator, steps])
    reader.join(timeout=60)
    assert len(seen) == steps
    assert np.mean(seen[-10:]) < np.mean(seen[:10]) / 3
