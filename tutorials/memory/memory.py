# %% [markdown]
# # Memory: why a model does not fit, and each way out with its price
#
# An IPU has 1,472 tiles with 624 KiB each. All that a model needs must be there: weights, optimiser state, activations, and even the
# program. The emulator counts all this before anything runs. Your model runs here in any case. But you learn whether it would fit on
# the machine, and if not, why.
#
# The figures are *modelled*; [docs/fidelity.md](../../docs/fidelity.md) compares them with published ones.

# %%
import os

import matplotlib.pyplot as plt
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

WIDTH, LENGTH, LAYERS = 512, 256, 4
ROWS_PER_UPDATE = 128

# %% [markdown]
# ## A model that is too large
#
# Four layers of a Transformer in float32, with 16 rows in a micro-batch. `case` compiles it with some settings and returns two reports:
# what the tiles hold, and how fast it would be on a Bow-Pod16. Nothing is trained.


# %%
class Encoder(nn.Module):
    def __init__(self, num_ipus=1):
        super().__init__()
        self.num_ipus = num_ipus
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, dropout=0.0)
            for _ in range(LAYERS)
        )

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"layer{index}", ipu_id=index * self.num_ipus // LAYERS):
                x = layer(x)
                if index + 1 == LAYERS:
                    return poptorch.identity_loss((x * x).mean(), "none")


def case(
    rows=16, dtype=torch.float32, num_ipus=1, strategy=poptorch.PipelinedExecution, change=None
):
    """Returns what the tiles hold, and how long a step takes."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(ROWS_PER_UPDATE // rows)
    options.setExecutionStrategy(strategy())
    if change is not None:
        change(options)
    model = Encoder(num_ipus).to(dtype)
    optimizer = poptorch.optim.AdamW(model.parameters())
    training = poptorch.trainingModel(model, options, optimizer)
    batch = torch.zeros(ROWS_PER_UPDATE * options.replication_factor, LENGTH, WIDTH, dtype=dtype)
    try:
        training.compile(batch)
        return emulator.tile_memory(training), emulator.estimate(training, system="bow-pod16")
    finally:
        training.destroy()


# %% [markdown]
# By default, a model that would not fit is compiled with a warning. With `POPTORCH_EMU_OOM=error` it is refused, as the machine would.

# %%
os.environ["POPTORCH_EMU_OOM"] = "error"
try:
    case()
except poptorch.Error as error:
    print(str(error).split("\n")[0])

# %% [markdown]
# ## Who takes the memory?
#
# We ask for no warnings now and look at the table. It says what a tile holds on average when the IPU holds most, at which operation that
# is, and what the largest things are.

# %%
os.environ["POPTORCH_EMU_OOM"] = "off"
tiles, base = case()
print(tiles)
assert not tiles.fits

# %% [markdown]
# *Live at the peak* is the largest: activations that wait for backward. *Temporary at the peak* comes next: what the operation at the
# peak takes while it runs. Both grow with the rows of a micro-batch. Weights and optimiser state are small beside them. So it is the
# activations that we have to deal with first.
#
# ## The ways out
#
# We try them one by one. Each has a price, and the price is mostly speed.

# %%
results = {"as it is": (tiles, base)}


def show(name):
    tiles, report = results[name]
    fullest = max(map(tiles.largest_bytes, tiles.ipus)) / 1024
    fits = "fits" if tiles.fits else "does not fit"
    print(f"{name}: {fullest:.0f} KiB on the fullest tile, {fits}, {report.throughput:,.0f} rows/s")


show("as it is")

# %% [markdown]
# ### Fewer rows at a time
#
# Micro-batches of 4 rows and four times the accumulation train the same. Each micro-batch needs a quarter of the activations. The price:
# small products use the tiles less well, and each program start weighs more.

# %%
results["4 rows"] = case(rows=4)
show("4 rows")

# %% [markdown]
# ### Compute activations again
#
# With *recomputation* only some activations wait for backward. It computes the others again, a piece of the model at a time. In this
# model little is live between two layers, so that is where `1` (standard) cuts; `3` would cut where you put
# `poptorch.recomputationCheckpoint`. The price: forward is computed nearly twice.
#
# With 16 rows that is not enough: what is temporary stays as it was. With 8 rows the model does not fit without it, and fits with it.


# %%
def recompute(options):
    options._Popart.set("autoRecomputation", 1)


results["recomputed"] = case(change=recompute)
results["8 rows"] = case(rows=8)
results["8 rows, recomputed"] = case(rows=8, change=recompute)
show("recomputed")
show("8 rows")
show("8 rows, recomputed")
assert not results["recomputed"][0].fits
assert results["8 rows, recomputed"][0].fits > results["8 rows"][0].fits

# %% [markdown]
# ### Half the bytes
#
# float16 halves what is kept: weights, and activations that wait. It is faster, too. What is temporary hardly changes, since a product
# takes as much room as it may, and so a tile does not hold half as much. The price is precision, which
# [mixed precision](../mixed_precision/mixed_precision.ipynb) is about.

# %%
results["float16"] = case(dtype=torch.float16)
show("float16")

# %% [markdown]
# ### Less room for products
#
# A product may use room for its operands, so that it is faster. `setAvailableMemoryProportion` says how much of a tile it may take: 0.6 by
# default. With float16 this brings us below the line. The price: the products take longer.


# %%
def less_room(options):
    options.setAvailableMemoryProportion({"IPU0": 0.2})


results["float16, proportion 0.2"] = case(dtype=torch.float16, change=less_room)
show("float16, proportion 0.2")

# %% [markdown]
# ### More IPUs
#
# With the layers on four IPUs, each holds a quarter of the weights. A pipeline also recomputes its activations by default, so that
# only the inputs of stages are stashed. The price: the activations are computed twice, the pipeline has to fill and drain, and you pay for four
# IPUs. *Sharded* execution runs one micro-batch at a time and needs no stash, but three IPUs always wait.
#
# Here neither is faster than one IPU. `print(results["4 IPUs, pipelined"][1])` says why: forward and backward of a layer take 2 to 3 ms,
# but the input of a micro-batch needs more than 5 ms from the host. A pipeline is as fast as its slowest stage, and that is the first one, which waits for
# its input. [Pipelining](../pipelining/pipelining.ipynb) shows a pipeline that is faster.

# %%
results["4 IPUs, pipelined"] = case(num_ipus=4)
results["4 IPUs, sharded"] = case(num_ipus=4, strategy=poptorch.ShardedExecution)
show("4 IPUs, pipelined")
show("4 IPUs, sharded")

# %% [markdown]
# ### Optimiser state in streaming memory
#
# AdamW keeps two numbers for each weight. They can live outside of the chip, and visit it once in an update.


# %%
def offload(options):
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(location)


results["4 rows, state off chip"] = case(rows=4, change=offload)
show("4 rows, state off chip")

# %% [markdown]
# ### Each replica keeps a part
#
# With several replicas, all hold the same optimiser state. With *replicated tensor sharding* each holds a part of it. It saves more with more
# replicas, and the price is small, since the gradients are exchanged anyway. The speed counts all four replicas.


# %%
def shard(options):
    options.replicationFactor(4)
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    location.minElementsForReplicatedTensorSharding(4)
    options.TensorLocations.setOptimizerLocation(location)


results["4 rows, 4 replicas, sharded state"] = case(rows=4, change=shard)
show("4 rows, 4 replicas, sharded state")

# %% [markdown]
# ## All in one picture

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
names = list(results)
fullest = [max(map(tiles.largest_bytes, tiles.ipus)) / 1024 for tiles, _ in results.values()]
colours = ["C0" if tiles.fits else "C3" for tiles, _ in results.values()]
axes[0].barh(names, fullest, color=colours)
axes[0].axvline(624, color="k", ls=":")
axes[0].set_xlabel("KiB on the fullest tile; the line is all there is")
per_ipu = [
    report.throughput / (len(report.ipus) * report.num_replicas) for _, report in results.values()
]
axes[1].barh(names, per_ipu, color=colours)
axes[1].set_xlabel("rows per second and IPU")
axes[0].invert_yaxis()

# %%
del os.environ["POPTORCH_EMU_OOM"]

# %% [markdown]
# ## Which way first?
#
# Look at the table of the tiles, and treat what is largest. For activations: fewer rows, float16, recomputation. For state and weights: more
# IPUs, sharding over replicas, streaming memory. For temporary memory: a smaller proportion, or
# `poptorch.serializedMatMul`, which computes a product in parts.
#
# Next: [observing tensors](../observing_tensors/observing_tensors.ipynb).
