# %% [markdown]
# # TensorFlow 2 programs on virtual IPUs
#
# Programs of TensorFlow 2 for the IPU have two ways to train: `fit` of a Keras model, and a *loop of their own* that `strategy.run`
# puts on the device. Such a loop takes its data from an iterator and sends what it wants to tell to a *queue*, which the host can
# read while the loop still runs.
#
# We train one small network on handwritten digits in both ways, see that they learn the same, and watch the loop through its queue.
# [The Keras tutorial](../keras_quick_start/keras_quick_start.ipynb) tells more about `fit`, pipelines and replicas.
#
# You need to know TensorFlow a little. TensorFlow itself prepares the data here; Keras 3 runs on PyTorch, which it has to be told
# before it is imported. The runner, `python -m poptorch_emu train.py`, does that for a whole program, and there
# `from tensorflow.python import ipu` is the import below.

# %%
import os

os.environ["KERAS_BACKEND"] = "torch"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import threading
import time

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from poptorch_emu import emulator
from poptorch_emu.keras import ipu

STEPS = 400  # in the tests: 40
BATCH = 16

# %% [markdown]
# ## The data
#
# scikit-learn brings 1,797 pictures of 8 by 8 pixels. A `tf.data` pipeline scales them, makes batches and repeats them for ever. All
# batches have one shape, which an IPU needs: hence `drop_remainder=True`.

# %%
digits = load_digits()


def make_dataset():
    pictures = tf.data.Dataset.from_tensor_slices((digits.data, digits.target))
    pictures = pictures.map(lambda x, y: (tf.cast(x, tf.float32) / 16, tf.cast(y, tf.int32)))
    return pictures.batch(BATCH, drop_remainder=True).repeat().prefetch(4)


print(make_dataset().element_spec)

# %% [markdown]
# ## One IPU, and `fit`
#
# `IPUConfig` says how many IPUs the process has. Models that are built in the scope of an `IPUStrategy` run on them.
# `steps_per_execution` is the number of batches that the device works on before it comes back to the host.

# %%
config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()
strategy = ipu.ipu_strategy.IPUStrategy()


def make_model():
    tf.keras.utils.set_random_seed(0)
    return tf.keras.Sequential(
        [
            tf.keras.Input((64,)),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

with strategy.scope():
    fitted = make_model()
    fitted.compile(
        tf.keras.optimizers.Adam(0.005), loss_of, metrics=["accuracy"], steps_per_execution=20
    )
    logs = fitted.fit(make_dataset(), steps_per_epoch=STEPS, shuffle=False, verbose=0)
print(f"accuracy on what it saw: {logs.history['accuracy'][-1]:.1%}")

# %% [markdown]
# ## A loop of our own
#
# The function below is one program of the device. Line by line:
#
# - `tf.range(steps)` becomes so many iterations of the device. The host is not asked in between.
# - `next(iterator)` is a batch that the device reads. The iterator was made in the scope, so it belongs to the device.
# - `tf.GradientTape` and `apply_gradients` are backward and the update of the weights, by the formula of the optimiser.
# - `queue.enqueue` sends values to the host, here two under names.


# %%
with strategy.scope():
    model = make_model()
    optimizer = tf.keras.optimizers.Adam(0.005)
    iterator = iter(make_dataset())
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()


@tf.function(jit_compile=True)
def train(iterator, steps):
    for _ in tf.range(steps):
        pictures, labels = next(iterator)
        with tf.GradientTape() as tape:
            scores = model(pictures, training=True)
            loss = loss_of(labels, scores)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        is_right = tf.equal(tf.argmax(scores, axis=1, output_type=tf.int32), labels)
        queue.enqueue({"loss": loss, "accuracy": tf.reduce_mean(tf.cast(is_right, tf.float32))})


strategy.run(train, args=[iterator, STEPS])
sent = queue.dequeue()
print({name: tuple(values.shape) for name, values in sent.items()})

# %% [markdown]
# `dequeue` gives all that has come since it was called last: one row for each iteration.
#
# Both models began with the same weights and saw the same batches. They should have learnt the same.

# %%
differences = [
    float(np.abs(a - b).max()) for a, b in zip(fitted.get_weights(), model.get_weights())
]
print(f"No weight differs by more than {max(differences):.0e}.")
assert max(differences) < 1e-3

plt.figure(figsize=(6, 2.8))
plt.plot(sent["loss"].numpy(), lw=0.8, label="loss of each iteration")
plt.plot(sent["accuracy"].numpy(), lw=0.8, label="accuracy of each iteration")
plt.xlabel("iteration")
_ = plt.legend()

# %% [markdown]
# ## Reading the queue while the loop runs
#
# A long loop would be silent until its end. Another thread can read the queue meanwhile: iterating it yields what has arrived and was
# not read yet, and ends where nothing more is there *at that moment*. So the thread asks again until it has as many as the loop sends.

# %%
arrivals = []


def watch(count):
    while len(arrivals) < count:
        for values in queue:
            arrivals.append((time.perf_counter(), float(values["loss"])))
        time.sleep(0.001)


watcher = threading.Thread(target=watch, args=[STEPS])
watcher.start()
strategy.run(train, args=[iterator, STEPS])
end = time.perf_counter()
watcher.join()
print(
    len(arrivals),
    "losses were read. The first came before the loop had ended:",
    arrivals[0][0] < end,
)

# %% [markdown]
# ## A loop without a model
#
# The device computes whatever the function says. A local variable that an iteration changes is handed on to the next one. With two
# replicas each runs the function on elements of its own; a value of a queue then has a row for each of them.

# %%
config.auto_select_ipus = 2
config.configure_ipu_system()

with strategy.scope():
    numbers = iter(tf.data.Dataset.range(100).map(lambda x: tf.cast(x, tf.float32)))
    totals = ipu.ipu_outfeed_queue.IPUOutfeedQueue()


@tf.function(jit_compile=True)
def add_up(numbers):
    total = 0.0
    for _ in tf.range(5):
        total = total + next(numbers)
        totals.enqueue(total)


strategy.run(add_up, args=[numbers])
print(totals.dequeue().numpy())

# %% [markdown]
# Replica 0 has read 0, 2, 4, 6 and 8, and replica 1 the numbers between. In a loop that trains, **gradients of replicas are added**;
# a program that wants their mean divides its loss by their number.
#
# ## What would an IPU need?
#
# What the emulator tells of models of PopTorch, it tells of a loop that ran, too: give the strategy in place of the model. A model of
# Keras stands for what it ran last.

# %%
print(emulator.memory(fitted))
print(f"{emulator.estimate(fitted).throughput:,.0f} pictures a second")

# %% [markdown]
# ## What to know
#
# - `next`, `enqueue` and `apply_gradients` are reached in each iteration, once. `break`, `tf.print` and Python's `if` on what the device
#   computes are refused, with the line.
# - An iterator that ends within a loop raises `OutOfRangeError`; its elements are kept for the next run.
# - Functions of `tf` on values of the device are computed by Keras's; those that have no counterpart are named when they are called.
#
# All of it is in [the guide](../../docs/guide/tensorflow.md).
