# %% [markdown]
# # Profiling: where the time and the memory go
#
# There are two clocks. The clock of the *machine* gives the time of a step on real IPUs, by a model (*modelled*). The clock of *your
# computer* gives the time of the emulator here. This notebook reads both. Then it finds the slow part, changes it, and looks again.

# %%
import contextlib
import json
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.companions import pva
from poptorch_emu.emulator import show
from poptorch_emu.report import view

WIDTH, ROWS, ACCUMULATION = 256, 64, 8
folder = tempfile.TemporaryDirectory()
work = Path(folder.name)

# %% [markdown]
# ## A model with a mistake
#
# The model has six layers on two IPUs, and somebody put four of them on the first IPU. With `enableProfiling` the engine records its
# actions; the argument is the folder of the files.


# %%
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Network(nn.Module):
    def __init__(self, ipu_of_layer):
        super().__init__()
        self.layers = nn.ModuleList(
            poptorch.BeginBlock(Layer(), f"layer{number}", ipu_id=ipu)
            for number, ipu in enumerate(ipu_of_layer)
        )

    def forward(self, x, target):
        for layer in self.layers:
            x = layer(x)
        return x, nn.functional.mse_loss(x, target)


def make_training(ipu_of_layer, name):
    torch.manual_seed(0)
    model = Network(ipu_of_layer)
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.enableProfiling(str(work))
    options.modelName(name)
    options.logCycleCount(True)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-3)
    return poptorch.trainingModel(model, options, optimizer)


batch = torch.randn(ROWS * ACCUMULATION, WIDTH), torch.randn(ROWS * ACCUMULATION, WIDTH)
training = make_training((0, 0, 0, 0, 1, 1), "uneven")
for _ in range(2):
    training(*batch)

# %% [markdown]
# ## The machine's clock
#
# `emulator.estimate` is a report of one step. Its rows show how each IPU spends its time. *Bubble* is waiting for other IPUs. The last
# lines name the limit of the speed, and the assumptions.

# %%
report = emulator.estimate(training, system="bow-pod16")
show(report)

# %% [markdown]
# When does each IPU do that? `emulator.timeline` can be printed and drawn, to scale. Which IPU waits?

# %%
timeline = emulator.timeline(training, system="bow-pod16")
timeline.plot()
show(timeline)

# %% [markdown]
# The report is a value, so a program can evaluate it. Which modules take the time?

# %%
of_module = {}
for operation in report.operations():
    of_module[operation.module] = of_module.get(operation.module, 0) + operation.cycles
for module, cycles in sorted(of_module.items(), key=lambda item: -item[1])[:6]:
    print(
        f"{module or '(model)':16} {cycles / report.clock_hz * 1e6:6.1f} microseconds a micro-batch"
    )
print(f"a step takes {training.cycleCount():,} cycles on the virtual system")

# %% [markdown]
# ## Your computer's clock
#
# `getPerfCounters` returns the times at which inputs and outputs of the last call crossed, and `getLatency` summarises them: shortest,
# longest and mean.

# %%
start = time.perf_counter()
training(*batch)
print(f"the call took {(time.perf_counter() - start) * 1e3:.0f} ms here")
print("from an input to its output:", *(f"{s * 1e3:.1f} ms" for s in training.getLatency()))

# %% [markdown]
# The engine has also recorded its actions and their times. With `enableProfiling` the model writes `profile.pop` while it runs. It
# writes texts and a trace when it is destroyed. Perfetto and Chrome's `about:tracing` open `trace.json`. A program can read the file,
# too.

# %%
page = emulator.page(training, work / "uneven.html", system="bow-pod16")
training.destroy()
print(*sorted(str(path.relative_to(work)) for path in work.rglob("*.*")))
events = json.loads((work / "uneven" / "trace.json").read_text())["traceEvents"]
print(len(events), "events; the first is", events[0]["name"])
# Two IPUs in three calls: 8 forwards, 8 backwards and an update on each.
assert len(events) == 3 * 2 * 17

# %% [markdown]
# ## The page
#
# `emulator.page` has just written `uneven.html`. It is one file that opens in any browser without a network: summary, timeline, memory, operations and
# graph, to look at and to search. Here is its size.

# %%
print(f"{page.name}: {page.stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# This is the timeline on the page of another model, a pipeline of four IPUs:
#
# ![The page of a pipelined model: what four IPUs do when](../../docs/images/profile_page.png)
#
# ## The file behind it
#
# `profile.pop` is an SQLite database with all of this. Programs that were written for Graphcore's library `pva` can read it, because
# the objects here have the same names. Under `python -m poptorch_emu` the module is `pva`. Elsewhere it is
# `poptorch_emu.companions.pva`. An unknown name raises an error.

# %%
analysed = pva.openReport(work / "uneven" / "profile.pop")
target = analysed.compilation.target
print(f"{target.numIPUs} IPUs with {target.tilesPerIpu:,} tiles of {target.bytesPerTile:,} bytes")
for number, ipu in enumerate(analysed.compilation.ipus):
    held = [tile.memory.total.excludingGaps for tile in ipu.tiles]
    print(f"IPU {number}: {min(held):,} to {max(held):,} bytes on its tiles")
for number in range(target.numIPUs):
    cycles = sum(step.ipus[number].cycles for step in analysed.execution.steps)
    print(f"IPU {number} is busy for {cycles:,} cycles of {analysed.execution.totalCycles.total:,}")
try:
    print(len(analysed.compilation.programs))
except AttributeError as error:
    print(str(error).partition(",")[0])

# %% [markdown]
# ## Correct it, and look again
#
# The report names the IPU that limits the speed. We give three layers to each IPU.

# %%
mended = make_training((0, 0, 0, 1, 1, 1), "even")
mended(*batch)
better = emulator.estimate(mended, system="bow-pod16")
print(f"before: {report.speed} rows a second; limited by {report.bottleneck}")
print(f"after:  {better.speed} rows a second; limited by {better.bottleneck}")
assert better.throughput > report.throughput

figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
for axis, (name, plan) in zip(axes, {"before": report, "after": better}.items()):
    plan.plot(axis)
    axis.set_title(f"{name}: {plan.step_seconds * 1e3:.2f} ms")
axes[0].get_legend().remove()
axes[1].set_ylabel("")
show()

# %% [markdown]
# The command `poptorch-emu view uneven.html even.html` makes one page that compares the two. Here we call the function behind it.

# %%
emulator.page(mended, work / "even.html", system="bow-pod16")
mended.destroy()
both = work / "both.html"
with contextlib.redirect_stdout(None):  # It prints the path.
    view.main([str(work / "uneven.html"), str(work / "even.html"), "-o", str(both)])
print(f"{both.name}: {both.stat().st_size / 1e6:.1f} MB")
folder.cleanup()

# %% [markdown]
# Next: [reproduce a paper](../reproduce_a_paper/reproduce_a_paper.ipynb). Then test yourself in [the course](../course/course.ipynb). The
# [guide](../../docs/guide/training.md) has one page for each task.
