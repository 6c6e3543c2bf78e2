# %% [markdown]
# # Memory: why a model does not fit, and each way out with its price
#
# An IPU has 1,472 tiles with 624 KiB each. Everything that a model needs must fit there: weights, optimiser state, activations, and
# even the program. The emulator counts all of it before anything runs. Your model runs here in any case. But you learn whether it would
# fit on the machine, and if not, why.
#
# The figures are *modelled*; [docs/fidelity.md](../../docs/fidelity.md) compares them with published ones.

# %%
import os

import matplotlib.pyplot as plt
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import show

WIDTH, LENGTH, LAYERS = 512, 256, 4
ROWS_PER_UPDATE = 128

# %% [markdown]
# ## A model that is too large
#
# Four layers of a Transformer in float32, with 16 rows in a micro-batch. `case` wraps it with some settings and returns two reports:
# the contents of the tiles, and the speed on a Bow-Pod16. Nothing is trained, so shapes are enough: weights and batch are on PyTorch's
# *meta* device, and take no memory here.


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


def wrapped(
    rows=16,
    dtype=torch.float32,
    num_ipus=1,
    strategy=poptorch.PipelinedExecution,
    change=None,
    device="meta",
):
    """Returns a wrapped model, and the batch of a call."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(ROWS_PER_UPDATE // rows)
    options.setExecutionStrategy(strategy())
    if change is not None:
        change(options)
    with torch.device(device):
        model = Encoder(num_ipus).to(dtype)
        rows_of_call = ROWS_PER_UPDATE * options.replication_factor
        batch = torch.zeros(rows_of_call, LENGTH, WIDTH, dtype=dtype)
    optimizer = poptorch.optim.AdamW(model.parameters())
    return poptorch.trainingModel(model, options, optimizer), batch


def case(**settings):
    """Returns the contents of the tiles, and the time of a step."""
    training, batch = wrapped(**settings)
    report = emulator.estimate(training, batch, system="bow-pod16")
    return emulator.tile_memory(training, batch), report


# %% [markdown]
# By default, a model that would not fit is compiled with a warning. With `POPTORCH_EMU_OOM=error` it is refused, as on the machine.

# %%
os.environ["POPTORCH_EMU_OOM"] = "error"
training, batch = wrapped(device="cpu")
try:
    training.compile(batch)
except poptorch.Error as error:
    print(str(error).split("\n")[0])
del os.environ["POPTORCH_EMU_OOM"]

# %% [markdown]
# ## Who takes the memory?
#
# Now look at the table. It describes the moment at which the IPU holds most. The table names the operation at that moment, and lists
# the average contents of a tile.

# %%
tiles, base = case()
show(tiles)
tiles.plot()
show()
assert not tiles.fits

# %% [markdown]
# *Live at the peak* are activations that wait for backward. *Temporary at the peak* is the memory that the operation takes while it runs. Both
# grow with the rows of a micro-batch. Compare them with weights and optimiser state: in this model the activations come first.
#
# ## The ways out
#
# We try them one by one. Each has a price, and the price is mostly speed. A model *may fit* if the limit is within the likely range of
# its fullest tile.

# %%
results = {"as it is": (tiles, base)}
WORDS = {"yes": "fits", "close": "may fit", "no": "does not fit"}


def tell(name):
    tiles, report = results[name]
    print(f"{name}: {WORDS[tiles.worst_verdict]}")
    print(f"  {tiles.most / 1024} KiB on the fullest tile, {report.speed} rows/s")


tell("as it is")

# %% [markdown]
# ### Fewer rows at a time
#
# Micro-batches of 4 rows with four times the accumulation give the same updates. Each micro-batch needs a quarter of the activations.
# The price: small products use the tiles less well, and each program start takes a larger share of the time.

# %%
results["4 rows"] = case(rows=4)
tell("4 rows")

# %% [markdown]
# ### Recompute activations
#
# With *recomputation* only some activations wait for backward. Backward computes the others again, one piece of the model at a time. In
# this model few values are live between two layers, so `1` (standard) cuts there; `3` would cut at each
# `poptorch.recomputationCheckpoint`. The price: forward is computed nearly twice.
#
# The temporary memory stays the same. So look at the lines below: is recomputation enough with 16 rows, and with 8?


# %%
def recompute(options):
    options._Popart.set("autoRecomputation", 1)


results["recomputed"] = case(change=recompute)
results["8 rows"] = case(rows=8)
results["8 rows, recomputed"] = case(rows=8, change=recompute)
tell("recomputed")
tell("8 rows")
tell("8 rows, recomputed")
assert not results["recomputed"][0].fits
assert results["8 rows, recomputed"][0].most_bytes < results["8 rows"][0].most_bytes

# %% [markdown]
# ### Half the bytes
#
# float16 halves the memory of weights and of activations that wait. It is faster, too. The temporary memory hardly changes, since a
# product takes as much memory as it may. So the total is more than half of the original. The price is precision: [mixed
# precision](../mixed_precision/mixed_precision.ipynb).

# %%
results["float16"] = case(dtype=torch.float16)
tell("float16")

# %% [markdown]
# ### Less room for products
#
# A product may use room for its operands, so that it is faster. `setAvailableMemoryProportion` is the share of a tile that it may take:
# 0.6 by default. The price: the products take longer.


# %%
def less_room(options):
    options.setAvailableMemoryProportion({"IPU0": 0.2})


results["float16, proportion 0.2"] = case(dtype=torch.float16, change=less_room)
tell("float16, proportion 0.2")

# %% [markdown]
# ### More IPUs
#
# With the layers on four IPUs, each holds a quarter of the weights. A pipeline also recomputes its activations by default, so that
# only the inputs of stages are stashed. The price: the activations are computed twice, the pipeline has to fill and drain, and you pay for four
# IPUs. *Sharded* execution runs one micro-batch at a time and needs no stash, but three IPUs always wait.
#
# Is either faster than one IPU? The report of the pipeline says what limits it. A pipeline is as fast as its slowest stage, and the first stage
# also waits for its input from the host. [Pipelining](../pipelining/pipelining.ipynb) shows a pipeline that is faster.

# %%
results["4 IPUs, pipelined"] = case(num_ipus=4)
results["4 IPUs, sharded"] = case(num_ipus=4, strategy=poptorch.ShardedExecution)
tell("4 IPUs, pipelined")
tell("4 IPUs, sharded")
show(results["4 IPUs, pipelined"][1])

# %% [markdown]
# ### Optimiser state in streaming memory
#
# AdamW keeps two numbers for each weight. They can be stored outside the chip, which needs them only once in an update.


# %%
def offload(options):
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(location)


results["4 rows, state off chip"] = case(rows=4, change=offload)
tell("4 rows, state off chip")

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
tell("4 rows, 4 replicas, sharded state")

# %% [markdown]
# ## All in one picture

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
names = list(results)
fullest = [tiles.most_bytes / 1024 for tiles, _ in results.values()]
COLOURS = {"yes": "C0", "close": "C1", "no": "C3"}
colours = [COLOURS[tiles.worst_verdict] for tiles, _ in results.values()]
axes[0].barh(names, fullest, color=colours)
limit = axes[0].axvline(624, color="k", ls=":")
axes[0].set_xlabel("KiB on the fullest tile")
per_ipu = [
    report.throughput / (len(report.ipus) * report.num_replicas) for _, report in results.values()
]
axes[1].barh(names, per_ipu, color=colours)
axes[1].set_xlabel("rows per second and IPU")
axes[0].invert_yaxis()
marks = [limit, *(plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values())]
words = ["memory of a tile", "fits", "may fit", "does not fit"]
figure.legend(marks, words, loc="outside lower center", ncols=4, fontsize=8)
show()

# %% [markdown]
# ## Which way first?
#
# Look at the table of the tiles, and begin with the largest part. For activations: fewer rows, float16, recomputation. For state and weights: more
# IPUs, sharding over replicas, streaming memory. For temporary memory: a smaller proportion, or
# `poptorch.serializedMatMul`, which computes a product in parts.
#
# Next: [observing tensors](../observing_tensors/observing_tensors.ipynb).
