# %% [markdown]
# # TensorFlow 2 programs on virtual IPUs
#
# A program of TensorFlow 2 can train on an IPU in two ways. It can call `fit` of a Keras model. Or it can contain its own *training
# loop*, and `strategy.run` puts that loop on the device. The loop takes its data from an iterator. It sends losses and other values to
# a *queue*, and the host can read the queue while the loop still runs.
#
# We train one small network on handwritten digits in both ways. Both learn the same. Then we watch the loop through its queue. [The
# Keras tutorial](../keras_quick_start/keras_quick_start.ipynb) explains more about `fit`, pipelines and replicas.
#
# You need to know a little about TensorFlow. Here TensorFlow prepares the data, and Keras 3 runs on PyTorch. An environment variable
# selects this before Keras is imported. The command `python -m poptorch_emu train.py` does that for a whole program. Such a program
# keeps its own import, `from tensorflow.python import ipu`.

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
from poptorch_emu.emulator import show
from poptorch_emu.keras import ipu

STEPS = 400  # in the tests: 40
BATCH = 16

# %% [markdown]
# ## The data
#
# scikit-learn provides 1,797 pictures of 8 by 8 pixels. A `tf.data` pipeline scales them, puts them into batches and repeats them
# without end. An IPU needs all batches to have the same shape. So `drop_remainder=True` leaves out the last, smaller batch.

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
# `IPUConfig` sets the number of IPUs of the process. A model that is built in the scope of an `IPUStrategy` runs on them.
# `steps_per_execution` is the number of batches on which the device works before it comes back to the host.

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
# ## Our own loop
#
# The function below becomes one program of the device. Its lines mean this:
#
# - `tf.range(steps)` sets the number of iterations on the device. The device does not ask the host in between.
# - `next(iterator)` reads a batch. The iterator was created in the scope, so it belongs to the device.
# - `tf.GradientTape` computes the gradients, and `apply_gradients` updates the weights.
# - `queue.enqueue` sends values to the host. Here it sends two values, each under a name.


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
# `dequeue` returns all values that have come since its last call, with one row for each iteration.
#
# Both models began with the same weights and saw the same batches. So they should have learnt the same.

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
plt.legend()
show()

# %% [markdown]
# ## Reading the queue while the loop runs
#
# A long loop would show nothing until its end. But another thread can read the queue in the meantime. `for values in queue` yields all
# values that have arrived and were not read yet. It ends when the queue is empty *at that moment*. So the thread begins again until it
# has read as many values as the loop sends.

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
# The function does not need a model. If an iteration changes a local variable, the next iteration sees the new value. With two
# replicas, each replica runs the function on other elements of the data. A value of a queue then has one row for each replica.

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
# Replica 0 has read 0, 2, 4, 6 and 8, and replica 1 has read the numbers between them. In a loop that trains, **the gradients of the
# replicas are added up**. A program that wants their mean divides its loss by the number of replicas.
#
# ## What would an IPU need?
#
# The functions of the emulator answer this for a model of Keras, too. They describe the model's last run. For your own loop, pass the
# strategy in place of the model.

# %%
show(emulator.memory(fitted))
report = emulator.estimate(fitted, system="bow-pod4")
report.plot()
show(report)

# %% [markdown]
# ## What to know
#
# - Each iteration calls `next`, `enqueue` and `apply_gradients` once. `break`, `tf.print` and a Python `if` on a value of the device are
#   refused. The error names the line.
# - If an iterator ends within a loop, the loop raises `OutOfRangeError`. The elements that it has read are kept for the next run.
# - Keras computes the functions of `tf` on values of the device. If Keras has no such function, the error names the function.
#
# [The guide](../../docs/guide/tensorflow.md) describes the rest.
