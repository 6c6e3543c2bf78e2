# %% [markdown]
# # Data loading: is the model waiting for its data?
#
# A fast device needs its data in time. This notebook measures three speeds: of the loader, of the model, and of both together. Then
# loader and model work at the same time.
#
# The times are those of the computer that ran this notebook. Yours will differ. Compare the speeds with each other.

# %%
import time

import matplotlib.pyplot as plt
import torch
from slow_digits import SlowDigits
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import show

COUNT = 1536  # in the tests: 256
SECONDS_PER_PICTURE = 0.4e-3
# Start method of the other process; see below.
FORK = {"sharing_strategy": poptorch.SharingStrategy.Fork}

# %% [markdown]
# ## The loader
#
# `poptorch.DataLoader` is PyTorch's loader, with one difference. It derives the number of rows of one call from the options, and
# creates batches of that size. `batch_size` is the number of rows of a micro-batch.
#
# Our dataset `SlowDigits` takes a fraction of a millisecond for each picture, as a file on a disk might. It is in a separate file,
# because another process must be able to import it.


# %%
def make_options(synthetic=False):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.deviceIterations(4)
    options.Training.gradientAccumulation(2)
    options.enableSyntheticData(synthetic)
    return options


dataset = SlowDigits(COUNT, SECONDS_PER_PICTURE)
loader = poptorch.DataLoader(make_options(), dataset, batch_size=16)
print("rows of a call:", loader.combinedBatchSize)
print("calls of an epoch:", len(loader))

# %% [markdown]
# ## A model


# %%
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images, labels):
        scores = self.layers(images)
        return scores, self.loss(scores, labels)


def make_training(synthetic=False):
    torch.manual_seed(0)
    model = Network()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
    return poptorch.trainingModel(model, make_options(synthetic), optimizer)


# %% [markdown]
# ## Three measurements
#
# 1. The loader alone: take all batches and do nothing with them.
# 2. The model alone: train on one batch again and again.
# 3. Both.


# %%
def rows_per_second(batches, work):
    rows, start = 0, time.perf_counter()
    for images, labels in batches:
        work(images, labels)
        rows += len(images)
    return rows / (time.perf_counter() - start)


training = make_training()
batch = next(iter(loader))
training(*batch)  # The first call compiles.

rates = {
    "loader alone": rows_per_second(loader, lambda *batch: None),
    "model alone": rows_per_second([batch] * len(loader), training),
    "both": rows_per_second(loader, training),
}
for name, rate in rates.items():
    print(f"{name}: {rate:6,.0f} rows per second")

# %% [markdown]
# Both together are slower than the slower one, because they take turns. While the loader loads, the model waits. So their times add up:

# %%
one_after_the_other = 1 / (1 / rates["loader alone"] + 1 / rates["model alone"])
print(f"expected: {one_after_the_other:,.0f}, measured: {rates['both']:,.0f} rows per second")

# %% [markdown]
# ## The asynchronous loader
#
# In mode `Async` another process loads the next batches while the model works. With `num_workers` that process gets helpers.
#
# The *sharing strategy* decides how that process starts. The default, `ForkServer`, starts a clean process and imports your program
# there. So a script must have its main part under `if __name__ == "__main__":`. `Fork` copies the running process instead. It needs no
# such line, so this notebook uses it.


# %%
def measure(name, **settings):
    loader = poptorch.DataLoader(
        make_options(), dataset, batch_size=16, async_options=FORK, **settings
    )
    for _ in loader:  # Starts the process and its helpers.
        pass
    rates[name] = rows_per_second(loader, training)
    loader.terminate()


measure("Async", mode=poptorch.DataLoaderMode.Async)
measure("Async, 2 helpers", mode=poptorch.DataLoaderMode.Async, num_workers=2)
for name, rate in rates.items():
    print(f"{name:16} {rate:6,.0f} rows per second")
figure, axis = plt.subplots(figsize=(6, 2.4), layout="constrained")
axis.barh(list(rates), list(rates.values()), color=["C7", "C7", "C0", "C0", "C0"])
axis.invert_yaxis()
axis.set_xlabel("rows per second")
show()

# %% [markdown]
# If `Async` is still slower than the model alone, then loading is the bottleneck: add helpers, or make loading cheaper. If it is as
# fast as the model alone, then the data arrive in time.
#
# ## Synthetic data
#
# On real IPUs there is another way to answer the question. With `enableSyntheticData` the device generates its inputs and ignores
# yours. The remaining time is the model's own.

# %%
training.destroy()
synthetic = make_training(synthetic=True)
synthetic(*batch)
rates["synthetic"] = rows_per_second([batch] * len(loader), synthetic)
print(f"synthetic data: {rates['synthetic']:,.0f} rows per second")
print(f"model alone:    {rates['model alone']:,.0f} rows per second")

# %% [markdown]
# ## What would the machine say?
#
# On a real IPU this model may be much faster than on this computer. `emulator.estimate` computes the time of a step there (*modelled*).
# Give it your loader's speed with `io`, and it says whether the IPU waits for the loader. The first report is without a loader, the
# second with ours.

# %%
for io in (None, emulator.HostWork(items_per_second=rates["loader alone"])):
    report = emulator.estimate(synthetic, system="bow-pod16", io=io)
    report.plot()
    show(report)
synthetic.destroy()

# %% [markdown]
# ## Rows that do not fill a call
#
# 100 rows do not fill calls of 48. By default the rest is dropped. A model that was compiled for 48 rows does not accept fewer. With
# `drop_last=False` the loader also yields the rest, and a warning explains the consequences.

# %%
options = poptorch.Options()
options.deviceIterations(6)
hundred = torch.utils.data.TensorDataset(torch.arange(100))


def lengths(**settings):
    loader = poptorch.DataLoader(options, hundred, batch_size=8, async_options=FORK, **settings)
    found = [len(rows) for (rows,) in loader]
    if settings.get("mode") is not None:
        loader.terminate()
    return found


print("Sync:          ", lengths())
print("AsyncRebatched:", lengths(mode=poptorch.DataLoaderMode.AsyncRebatched, drop_last=False))
assert lengths() == [48, 48]

# %% [markdown]
# Each of several helpers creates complete batches by itself, and may have rows left over. In mode `AsyncRebatched` the helpers load
# small batches. Another process joins these and cuts them to the size of a call. With `drop_last=False` the last rows form a shorter
# batch. A compiled model cannot take that batch: pad it, or use it on the host.
#
# ## Batches live in a ring
#
# An asynchronous loader writes batches into a ring of buffers. When you request the next batch, the previous one may be overwritten. To
# keep a batch, clone it.

# %%
loader = poptorch.DataLoader(
    options, hundred, batch_size=8, mode=poptorch.DataLoaderMode.Async, async_options=FORK
)
kept = [rows.clone() for (rows,) in loader]
loader.terminate()
print([rows[0].item() for rows in kept])
assert [rows[0].item() for rows in kept] == [0, 48]

# %% [markdown]
# ## Any iterable, without a loader
#
# `poptorch.AsynchronousDataAccessor` does the same for any iterable of tensors, such as a list of your own batches.

# %%
batches = [torch.full((4,), float(index)) for index in range(3)]
accessor = poptorch.AsynchronousDataAccessor(batches, load_indefinitely=False, **FORK)
print([rows.tolist() for rows in accessor])
accessor.terminate()

# %% [markdown]
# Next: [pipelining](../pipelining/pipelining.ipynb).
