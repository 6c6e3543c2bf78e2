# %% [markdown]
# # Batching: who sees which rows
#
# In plain PyTorch a batch is the input of one `forward`. In PopTorch one call of the wrapped model may run `forward` many times: for
# several updates, several micro-batches of each update, and several replicas of the model. This notebook shows which replica gets which
# rows, and which rows come back.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import show

# %% [markdown]
# ## Four numbers
#
# | Number | Set by | Meaning |
# |---|---|---|
# | micro-batch | the loader's `batch_size` | rows that one `forward` sees |
# | device iterations | `options.deviceIterations` | updates in one call |
# | accumulation | `options.Training.gradientAccumulation` | micro-batches whose gradients make one update |
# | replicas | `options.replicationFactor` | copies of the model that work at the same time |
#
# One call consumes the product of the four. `poptorch.DataLoader` creates batches of that size.

# %%
ROWS, ITERATIONS, ACCUMULATION, REPLICAS = 2, 4, 2, 2


def make_options(replicas=REPLICAS):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.deviceIterations(ITERATIONS)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.replicationFactor(replicas)
    return options


row_numbers = torch.utils.data.TensorDataset(torch.arange(64.0).view(64, 1))
loader = poptorch.DataLoader(make_options(), row_numbers, batch_size=ROWS)
print("rows of a call:", loader.combinedBatchSize)
print("calls of an epoch:", len(loader))
assert loader.combinedBatchSize == ROWS * ITERATIONS * ACCUMULATION * REPLICAS

# %% [markdown]
# ## A model that takes notes
#
# For each row this model returns the replica that saw it, and the run of `forward`. The buffer `runs` counts the runs of `forward`.
# With `broadcastBuffers(False)` each replica counts for itself. The parameter `replica` has another value on each replica;
# `replicaGrouping` makes that possible. On the host this parameter has one row for each replica. `forward` sees the row of its own
# replica.


# %%
class Witness(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.replica = nn.Parameter(torch.arange(float(REPLICAS)).view(REPLICAS, 1))
        self.register_buffer("runs", torch.zeros(1))

    def forward(self, rows):
        replica, run = self.replica.expand_as(rows), self.runs.expand_as(rows)
        seen_by = torch.cat([rows, replica, run], dim=1).detach()
        self.runs += 1
        loss = poptorch.identity_loss((self.weight * rows).mean(), "none")
        return seen_by, loss


def call(mode, period=None):
    """Returns the model's notes on the rows that come back from one call."""
    options = make_options().broadcastBuffers(False).outputMode(mode, period)
    model = Witness()
    optimizer = poptorch.optim.SGD([model.weight], lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    training.replica.replicaGrouping(
        poptorch.CommGroupType.NoGrouping, 1, poptorch.VariableRetrievalMode.OnePerGroup
    )
    notes, _ = training(torch.arange(float(loader.combinedBatchSize)).view(-1, 1))
    training.destroy()
    return notes


notes = call(poptorch.OutputMode.All)
print("row, replica, run of forward:")
print(notes[:8].int().tolist())

# %% [markdown]
# Here are the notes as a picture. Each box is a row of the batch, in the order of the input. The colour of a box is the replica. The
# numbers in it are update and micro-batch.


# %%
def draw(notes, title, axis):
    """Draws all rows of the call as boxes; those that did not come back are grey."""
    came = {int(row): (int(replica), int(run)) for row, replica, run in notes.tolist()}
    for row in range(loader.combinedBatchSize):
        replica, run = came.get(row, (None, None))
        colour = "0.92" if replica is None else f"C{replica}"
        axis.add_patch(plt.Rectangle((row, 0), 0.92, 1, color=colour))
        if replica is not None:
            text = f"{run // ACCUMULATION}.{run % ACCUMULATION}"
            axis.text(row + 0.46, 0.5, text, ha="center", va="center", color="white", fontsize=7)
    axis.set(xlim=(0, loader.combinedBatchSize), ylim=(0, 1), yticks=[], title=title)
    axis.title.set_fontsize(9)


figure, axis = plt.subplots(figsize=(9, 1.1))
draw(notes, "replica (colour), update.micro-batch (text) of each row", axis)
show()

# %% [markdown]
# So the batch is divided as follows. First come all rows of update 0, then those of update 1, and so on. An update consists of its
# micro-batches. Each replica in turn takes a part of each micro-batch. Our notes agree with the formula:

# %%
row = notes[:, 0].long()
update = row // (REPLICAS * ACCUMULATION * ROWS)
micro_batch = row // (REPLICAS * ROWS) % ACCUMULATION
replica = row // ROWS % REPLICAS
print("replicas agree:", torch.equal(replica.float(), notes[:, 1]))
print("runs agree:", torch.equal((update * ACCUMULATION + micro_batch).float(), notes[:, 2]))
assert torch.equal(replica.float(), notes[:, 1])
assert torch.equal((update * ACCUMULATION + micro_batch).float(), notes[:, 2])

# %% [markdown]
# ## Output modes
#
# The device works through all rows, but you may not need all results. The output mode chooses the results that travel to the host.
# Inference returns all of them by default. Training returns only the last micro-batch of each replica. `EveryN` returns every n-th
# micro-batch; n must divide the number of device iterations.

# %%
modes = {
    "All": (poptorch.OutputMode.All, None),
    "Final, the default in training": (poptorch.OutputMode.Final, None),
    "EveryN with period 2": (poptorch.OutputMode.EveryN, 2),
}
figure, axes = plt.subplots(len(modes), 1, figsize=(9, 3), layout="constrained")
for axis, (name, (mode, period)) in zip(axes, modes.items()):
    returned = call(mode, period)
    draw(returned, f"{name}: {len(returned)} rows come back", axis)
show()

# %% [markdown]
# `OutputMode.Sum` adds the results of all micro-batches instead. That is useful for losses and for counts of right answers. Here it
# adds up the row numbers, one sum for each place in the micro-batch and each replica.

# %%
sums = call(poptorch.OutputMode.Sum)
print(sums[:, 0].tolist(), "add up to", int(sums[:, 0].sum()))
print("all row numbers add up to", sum(range(loader.combinedBatchSize)))
assert int(sums[:, 0].sum()) == sum(range(loader.combinedBatchSize))

# %% [markdown]
# ## Accumulation and replicas make one large batch
#
# The gradients of an update are averaged over its micro-batches and replicas. So the update equals that of one large batch. We compare
# it with plain PyTorch, which processes all rows of an update at once.


# %%
class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.linear(x), y)


torch.manual_seed(0)
emulated, plain = Regression(), Regression()
plain.load_state_dict(emulated.state_dict())
x, y = torch.randn(32, 3), torch.randn(32, 1)

options = make_options()
training = poptorch.trainingModel(
    emulated, options, poptorch.optim.SGD(emulated.parameters(), lr=0.1)
)
training(x, y)
training.destroy()

optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
for large_x, large_y in zip(x.chunk(ITERATIONS), y.chunk(ITERATIONS)):
    optimizer.zero_grad()
    plain(large_x, large_y).backward()
    optimizer.step()

difference = (emulated.linear.weight - plain.linear.weight).abs().max().item()
print(f"after {ITERATIONS} updates the weights differ by at most {difference:.1e}")
assert difference < 1e-6

# %% [markdown]
# ## When a batch does not fit
#
# A batch that cannot be divided evenly is refused.

# %%
try:
    training = poptorch.trainingModel(
        emulated, make_options(), poptorch.optim.SGD(emulated.parameters(), lr=0.1)
    )
    training(x[:20], y[:20])
except AssertionError as error:
    print(error)

# %% [markdown]
# ## Which number should grow?
#
# The emulator has a model of the machine's time. `emulator.what_if` computes the speed with other numbers. Our example is a perceptron
# of realistic size. Its weights are on PyTorch's *meta* device: they have shapes, but no memory. The figures are *modelled*.


# %%
class Perceptron(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x):
        return poptorch.identity_loss(self.layers(x), "mean")


with torch.device("meta"):
    large = Perceptron().half()
    rows = torch.empty(64, 1024, dtype=torch.half)
optimizer = poptorch.optim.SGD(large.parameters(), lr=0.1)
training = poptorch.trainingModel(large, poptorch.Options(), optimizer)
for name, values in {
    "micro_batch": [16, 64, 256],
    "accumulation": [1, 4, 16],
    "replicas": [1, 4, 16],
}.items():
    sweep = emulator.what_if(training, rows, sweep={name: values}, system="bow-pod16")
    show(sweep)

# %% [markdown]
# Why is a larger micro-batch so much better here? The picture shows what the IPU does during a step of 64 rows. It computes only for a
# small part of the step. Most of the time it waits for the host.

# %%
report = emulator.estimate(training, rows, system="bow-pod16")
report.plot()
show(report)

# %% [markdown]
# - More *device iterations*: fewer calls, so less work for Python. Losses come back later.
# - More *accumulation*: larger batches with the memory of small ones. A pipeline needs it.
# - More *replicas*: larger batches in the same time, on more IPUs.
# - A larger *micro-batch*: better use of an IPU, for more of its memory.
#
# Next: [data loading](../data_loading/data_loading.ipynb).
