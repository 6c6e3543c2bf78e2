# %% [markdown]
# # Reproduce a paper: how fast are ResNet-50 and BERT-Large on a Pod16?
#
# Papers and vendors publish how many images or sequences a machine trains in a second. This notebook predicts two such figures from the
# code of the models alone, on your computer, in a minute. Then it finds the limit of each model, and tries three remedies.
#
# The figures are *modelled*. [docs/fidelity.md](../../docs/fidelity.md) compares many more of them with published ones, and gives the
# sources and assumptions. The models and the settings of the published runs are in the folder `benchmarks/`; C17 and C24 are names of
# rows there.

# %%
import inspect
import sys
from functools import partial

import matplotlib.pyplot as plt
import torch

from poptorch_emu import emulator
from poptorch_emu.emulator import show

sys.path.append("../../benchmarks")
from fidelity_models import ResNet50
from fidelity_rows import large_bert, resnet_training
from time_rows import TIME_ROWS

ROW = {row.name: row for row in TIME_ROWS}

# %% [markdown]
# ## The code
#
# ResNet-50 runs on one IPU, in sixteen replicas. It normalises its 8-bit images itself, and recomputes activations. These are the model and the
# settings of the published run:

# %%
print(inspect.getsource(ResNet50))
print(inspect.getsource(resnet_training))

# %% [markdown]
# Everything is built on PyTorch's *meta* device. Weights and images have shapes, but no memory; nothing is trained.
#
# ## Predict
#
# **Guess first**: how many images does a Pod16 train in a second? How far off may a prediction from the code alone be?


# %%
def built(build):
    """Returns a wrapped model and its inputs, which have shapes but no data."""
    with torch.device("meta"):
        model, inputs = build()
    return model, *inputs


def predict(name, wrapped):
    """Returns the report of a published row, and prints it beside the published figure."""
    row = ROW[name]
    report = emulator.estimate(*wrapped, system=row.system, io=row.host)
    speed = report.speed * row.items_per_row
    predicted = speed.value
    print(f"{name}: {row.what}, {row.system}")
    print(f"  published {row.published:,.0f} a second, predicted {speed}")
    print(f"  the prediction is off by {predicted / row.published - 1:+.0%}")
    assert abs(predicted / row.published - 1) < 0.3
    return report


resnet_model = built(ROW["C24"].build)
resnet = predict("C24", resnet_model)
bert_model = built(ROW["C17 Pod16"].build)
bert = predict("C17 Pod16", bert_model)

# %% [markdown]
# BERT-Large is trained on sequences that are packed: several short ones share a row. The published figure counts sequences, so the prediction
# does, too.
#
# ## ResNet-50: what limits it?

# %%
show(resnet)
resnet.plot()
show()

# %% [markdown]
# Read the shares from the top. *Compute*, *exchange* and *sync* are the work itself. *Host* is waiting for images: an IPU cannot work
# on an image that has not arrived. A part of the compute is recomputation: the stage's row shows its milliseconds.
#
# ### Three remedies
#
# **Guess** the gain of each of these, and which of them still fits into memory:
#
# 1. load the next images while the IPU computes;
# 2. put more images into a micro-batch, so that starting a program takes a smaller share;
# 3. keep the activations instead of recomputing them.


# %%
def compare(rows, title):
    """Prints and draws the speed of each remedy, beside that of the unchanged model."""
    base = rows["as it is"].throughput
    print(f"{'':27} {'rows/s':>7} {'likely':>16} {'gain':>5}  {'fits':5}  limited by")
    for name, point in rows.items():
        gain = point.throughput / base - 1
        speed = f"{point.throughput:7,.0f} {point.speed.likely:>16} {gain:+5.0%}"
        print(f"{name:27} {speed}  {point.fits:5}  {point.limit}")
    figure, axis = plt.subplots(figsize=(7, 0.5 + 0.4 * len(rows)), layout="constrained")
    colours = ["C3" if point.fits == "no" else "C0" for point in rows.values()]
    axis.barh(list(rows), [point.throughput for point in rows.values()], color=colours)
    axis.invert_yaxis()
    axis.set(title=title, xlabel="rows per second, by the model of the machine; red does not fit")
    show()
    return max((p for p in rows.values() if p.fits != "no"), key=lambda p: p.throughput)


def tried(wrapped, **sweep):
    """Returns the point of each combination of settings; the first is the unchanged model."""
    return emulator.what_if(*wrapped, sweep=sweep, system="bow-pod16").points


as_it_is, kept, overlapped, _ = tried(
    resnet_model, overlap=["nothing", "inputs"], recomputation=["all", "none"]
)
remedies = {
    "as it is": as_it_is,
    "images while it computes": overlapped,
    "micro-batches of 32 images": tried(resnet_model, micro_batch=[32])[0],
    "no recomputation": kept,
}
best = compare(remedies, "ResNet-50")
assert best is overlapped

# %% [markdown]
# Remedies that need more memory than there is are red. `close` means that the model of the machine cannot be sure. Loading while
# computing has a price, too: tiles that load images do not compute. That is counted in its speed.
#
# ## BERT-Large: what limits it?
#
# BERT-Large has 24 layers. The published run puts 3, 7, 7 and 7 of them on four IPUs, with embedding and head on the first one, in four
# replicas.

# %%
show(bert)
bert.plot()
show()

# %% [markdown]
# A pipeline is as fast as its slowest IPU, and the others have a *bubble*. The first IPU has only three layers, and waits. Does it have
# room for another one? **Guess** before you look at the memory.

# %%
tiles = emulator.tile_memory(*bert_model, system="bow-pod16")
tiles.plot()
show(tiles)

# %% [markdown]
# ### Three remedies
#
# 1. another cut: 4, 6, 7 and 7 layers, or 6 on each IPU;
# 2. the interleaved order, which stashes less, so that more fits;
# 3. keep the activations instead of recomputing them.

# %%
CUTS = [(4, 6, 7, 7), (6, 6, 6, 6)]  # in the tests: []

as_it_is, kept, interleaved, _ = tried(
    bert_model, schedule=["grouped", "interleaved"], recomputation=["pipeline", "none"]
)
remedies = {"as it is": as_it_is}
for layers in CUTS:
    model = built(partial(large_bert, accumulation=1751, layers=layers))
    remedies[f"{'-'.join(map(str, layers))} layers"] = tried(model, schedule=["grouped"])[0]
remedies["interleaved"] = interleaved
remedies["no recomputation"] = kept
best = compare(remedies, "BERT-Large")
assert best.throughput < 1.001 * as_it_is.throughput

# %% [markdown]
# None of the remedies that fit is faster than the published settings. With 4-6-7-7 two IPUs still have seven layers, and they are as slow
# as before: a layer more on the first IPU gains nothing, but the tiles of the second one are less full. With six layers on each IPU
# the first one is the slowest, because it also has the embedding and the head. Keeping the activations would be fast, but does not fit.
#
# ## How sure is that?
#
# Use a prediction to compare settings of one model, rather than to promise a speed. Here are five published rows of large models. Predictions
# of very small models are much further off: [docs/fidelity.md](../../docs/fidelity.md) has them all.

# %%
MORE = ["C23 Pod16", "C18 Pod16", "C26"]  # in the tests: []
reports = {"C24": resnet, "C17 Pod16": bert}
for name in MORE:
    row = ROW[name]
    reports[name] = emulator.estimate(*built(row.build), system=row.system, io=row.host)
published = [ROW[name].published for name in reports]
predicted = [report.throughput * ROW[name].items_per_row for name, report in reports.items()]
for name, wanted, found in zip(reports, published, predicted):
    print(f"{name}: {ROW[name].what}: {found / wanted - 1:+.0%}")
figure, axis = plt.subplots(figsize=(4, 4), layout="constrained")
axis.loglog(published, predicted, "o")
ends = [min(published) / 1.5, max(published) * 1.5]
axis.loglog(ends, ends, "k:")
ticks = [5_000, 10_000, 20_000, 40_000]
axis.set(xticks=ticks, yticks=ticks, xticklabels=ticks, yticklabels=ticks)
axis.tick_params(which="minor", labelbottom=False, labelleft=False)
axis.set(xlabel="published, items per second", ylabel="predicted, items per second")
show()

# %% [markdown]
# ## To try
#
# 1. `ROW` has more names: `print(*ROW)`. Take one, and find what limits it.
# 2. Put your own model in place of ResNet-50.
# 3. What would 64 IPUs give? Use `C17 Pod64` and `system="bow-pod64"`; [scaling](../scaling/scaling.ipynb) explains the result.
