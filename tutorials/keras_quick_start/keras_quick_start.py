# %% [markdown]
# # Keras on virtual IPUs
#
# We train a small Keras model on handwritten digits. First Keras trains it by itself. Then it is trained on one *virtual IPU*, on a
# pipeline of two, and on four: two replicas of the pipeline. `fit`, `evaluate`, `predict` and callbacks stay unchanged. Only a few
# lines around them change.
#
# You need to know Keras. Nothing here needs an IPU, a network or TensorFlow. Here Keras 3 runs on PyTorch. An environment variable
# selects it before Keras is imported.

# %%
import gc
import json
import os
import tempfile
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

from poptorch_emu import emulator
from poptorch_emu.emulator import show
from poptorch_emu.keras import ipu

EPOCHS = 8  # in the tests: 1
BATCH = 32

# %% [markdown]
# ## The data
#
# scikit-learn provides 1,797 pictures of 8 by 8 pixels. We train on 1,280 of them and test with 512: whole batches, because one program
# on an IPU takes batches of one size.

# %%
digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.data))
images = (digits.images[order, :, :, None] / 16).astype("float32")
labels = digits.target[order]
train, test = (images[:1280], labels[:1280]), (images[1280:1792], labels[1280:1792])
print(len(train[0]), "pictures to train on,", len(test[0]), "to test with")

# %% [markdown]
# ## Keras by itself
#
# The model has two convolutions and two dense layers. The seed makes all our models start from the same weights.


# %%
def make_model():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def compile_and_fit(model, batch_size=BATCH, **settings):
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **settings,
    )
    logs = model.fit(*train, batch_size=batch_size, epochs=EPOCHS, shuffle=False, verbose=0)
    print(f"accuracy {logs.history['accuracy'][-1]:.1%} on what it saw")
    return logs.history


# %%
plain = make_model()
plain_logs = compile_and_fit(plain)

# %% [markdown]
# ## One IPU
#
# - `IPUConfig` sets the number of IPUs of the process.
# - A model that is built in the scope of an `IPUStrategy` runs on them.
# - `steps_per_execution` is the number of batches that one call of the device consumes. Each call costs time, so large numbers are
#   better. The number must divide the batches of an epoch, which are 40 here. Keras itself does not support it on PyTorch.

# %%
config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()

strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    model = make_model()
logs = compile_and_fit(model, steps_per_execution=8)

# %% [markdown]
# Both models began with the same weights and saw the same batches in the same order. So they should learn the same.

# %%
furthest = max(abs(a - b) for a, b in zip(plain_logs["loss"], logs["loss"]))
print(f"The losses of an epoch are never further apart than {furthest:.1e}.")
assert furthest < 1e-2

plt.figure(figsize=(6, 2.8))
plt.plot(plain_logs["loss"], lw=3, alpha=0.4, label="Keras by itself")
plt.plot(logs["loss"], lw=1, label="one virtual IPU")
plt.xlabel("epoch")
plt.ylabel("loss")
plt.legend()
show()

# %% [markdown]
# ## Test, predict, save
#
# These methods are Keras's own. Weights and the optimiser's state come back from the device when your program reads them.

# %%
loss, accuracy = model.evaluate(*test, batch_size=BATCH, verbose=0)
print(f"accuracy on the test set: {accuracy:.1%}")
scores = model.predict(test[0], batch_size=BATCH, verbose=0)
assert np.mean(scores.argmax(axis=1) == test[1]) == np.float32(accuracy)

# %% [markdown]
# ## A pipeline of two IPUs
#
# Each layer gets a *stage*, and each stage an IPU. The convolutions go to the first, the dense layers to the second. `Flatten` has a
# stage, too.
#
# While the second IPU works on one batch, the first is busy with the next. That works only if several batches contribute to one update
# of the weights. So 4 batches of 8 pictures make one update here, instead of one batch of 32. Their gradients are added up unless we
# request the mean.

# %%
config.auto_select_ipus = 2
config.configure_ipu_system()

with strategy.scope():
    pipelined = make_model()
pipelined.set_pipeline_stage_assignment([0, 0, 1, 1, 1])
pipelined.set_pipelining_options(
    gradient_accumulation_steps_per_replica=4, gradient_accumulation_reduction_method="mean"
)
pipelined.print_pipeline_stage_assignment_summary(line_length=50)

# %% [markdown]
# One step of Keras is one batch of 8 now, so 8 updates are 32 steps.

# %%
pipelined_logs = compile_and_fit(pipelined, batch_size=8, steps_per_execution=32)
furthest = max(abs(a - b) for a, b in zip(plain_logs["loss"], pipelined_logs["loss"]))
print(f"The losses of an epoch are never further apart than {furthest:.1e}.")
assert furthest < 1e-2

# %% [markdown]
# ## What would the machine do?
#
# A program that runs with this environment variable writes a report. `emulator.read_report` reads it: the speed on real IPUs, the
# limits and proposed changes (*modelled*). `poptorch-emu view` shows the same file as a page.

# %%
folder = tempfile.TemporaryDirectory()
settings = {"autoReport.all": "true", "autoReport.directory": folder.name}
os.environ["POPLAR_ENGINE_OPTIONS"] = json.dumps(settings)
with strategy.scope():
    profiled = make_model()
profiled.set_pipeline_stage_assignment([0, 0, 1, 1, 1])
profiled.set_pipelining_options(
    gradient_accumulation_steps_per_replica=4, gradient_accumulation_reduction_method="mean"
)
compile_and_fit(profiled, batch_size=8, steps_per_execution=32)
del os.environ["POPLAR_ENGINE_OPTIONS"]
(path,) = Path(folder.name).rglob("profile.pop")
report = emulator.read_report(path)
report.plot()
show(report)

# The report is complete once the model is deleted.
del profiled
gc.collect()
folder.cleanup()

# %% [markdown]
# ## Two replicas
#
# The same model on four IPUs: there is room for two copies of the pipeline. Each takes every other batch, and an update takes 4
# batches of each. We give each 4 pictures at a time, so that an update still sees 32. `steps_per_execution` counts the batches of
# one replica, which has 160 in an epoch.
#
# The gradients of replicas are added up in any case, so we halve the loss of each. Keras logs the metrics of the last replica, unless
# we request their mean.

# %%
config.auto_select_ipus = 4
config.configure_ipu_system()

with strategy.scope():
    replicated = make_model()
replicated.set_pipeline_stage_assignment([0, 0, 1, 1, 1])
replicated.set_pipelining_options(
    gradient_accumulation_steps_per_replica=4, gradient_accumulation_reduction_method="mean"
)
replicated.set_replication_options(replicated_metric_reduction_method="mean")
replicated_logs = compile_and_fit(
    replicated, batch_size=4, steps_per_execution=32, loss_weights=0.5
)
replicated_logs["loss"] = [2 * loss for loss in replicated_logs["loss"]]
furthest = max(abs(a - b) for a, b in zip(plain_logs["loss"], replicated_logs["loss"]))
print(f"The losses of an epoch are never further apart than {furthest:.1e}.")
assert furthest < 1e-2

# %% [markdown]
# ## What to know
#
# - `fit` refuses a smaller last batch; `evaluate` and `predict` accept it.
# - SGD, Adam, AdamW and RMSprop are computed on the device, by Keras's formulas. Other optimisers are refused.
# - Callbacks see every execution, not every batch.
#
# The full description is in [docs/keras.md](../../docs/keras.md).
