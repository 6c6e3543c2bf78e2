# %% [markdown]
# # A pipeline of four IPUs
#
# A model that is too large or too slow for one IPU is cut into *stages*, each on its own IPU. While the second stage works on one
# micro-batch, the first already works on the next. This notebook has nine steps: why, cut, run, look, balance, accumulate, iterate,
# offload, debug.
#
# Each statement of the text is confirmed by the output of a cell. At each **Guess**, write your guess down before you look at the next
# cell.
#
# Two models take part. `Network`, in `mnist_pipeline.py` beside this notebook, is small: it recognises handwritten digits, and is
# trained here. `encoder`, in `encoder_model.py`, is of real size. It is never run. The emulator computes its speed and its memory on a
# Bow-Pod16. Those figures are *modelled*: [docs/fidelity.md](../../docs/fidelity.md) compares them with published ones.

# %%
import contextlib
import copy
import inspect
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import mnist_pipeline
import torch
from digit_images import train_and_test
from encoder_model import Encoder, encoder
from mnist_pipeline import Network
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import show

SYSTEM = "bow-pod16"
EPOCHS = 10  # in the tests: 4
SECONDS = 0.5  # in the tests: 0.05

torch.manual_seed(42)
train_set, test_set = train_and_test(None)
print(len(train_set), "images to train on,", len(test_set), "to test with")

# %% [markdown]
# ## 1. Why
#
# Here is the model of real size. It has twelve layers of a Transformer, in float16.
#
# **Guess**: does it fit into one IPU? Are four IPUs four times as fast as one?

# %%
print(inspect.getsource(Encoder))
whys = emulator.what_if(*encoder(), sweep={"num_ipus": [1, 2, 4]}, system=SYSTEM)
show(whys)
one, _, four = whys.points
print(f"Four IPUs are {four.throughput / one.throughput:.1f} times as fast as one.")
assert one.fits == "no" and four.fits == "yes" and four.throughput < 4 * one.throughput

# %% [markdown]
# The column *fits* shows why most models are cut: the memory of one IPU is too small. Four IPUs are faster, but not four times as fast.
# The rest of this notebook shows where time is lost, and how to get some of it back.
#
# ## 2. Cut
#
# A *block* is a part of `forward`. A *stage* is one block or several, and runs on one IPU. There are three ways to open blocks. None of them
# does anything outside of a wrapped model, so the model still runs in plain PyTorch.
#
# This function prints the stages of a model. It does not run the model.


# %%
def print_stages(model, strategy, width=16):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(16)
    options.setExecutionStrategy(strategy)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = poptorch.trainingModel(model, options, optimizer)
    for stage in emulator.estimate(wrapped, torch.zeros(64, width)).stages:
        print(
            f"stage {stage.stage} on IPU {stage.ipu}: {' '.join(stage.blocks) or '(before the first block)'}"
        )
    wrapped.destroy()


class FourLayers(nn.Module):
    """The model in plain PyTorch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x, poptorch.identity_loss(x, "mean")


# %% [markdown]
# **With `BeginBlock`** the class stays unchanged. A block begins where the layer is called, and lasts until the next one begins.

# %%
model = FourLayers()
for ipu, layer in enumerate(model.layers):
    poptorch.BeginBlock(layer, f"B{ipu + 1}", ipu_id=ipu)
print_stages(model, poptorch.PipelinedExecution())

# %% [markdown]
# **With `Block`** you mark the block in `forward`. **With `BlockFunction`** a function becomes a block. Here the first layer comes before any
# block, and no IPUs are named yet.


# %%
class InBlocks(FourLayers):
    def forward(self, x):
        x = torch.relu(self.layers[0](x))
        with poptorch.Block("B1"):
            x = torch.relu(self.layers[1](x))
        x = self.second(x)
        with poptorch.Block("B3"):
            x = torch.relu(self.layers[3](x))
            return x, poptorch.identity_loss(x, "mean")

    @poptorch.BlockFunction("B2")
    def second(self, x):
        return torch.relu(self.layers[2](x))


# %% [markdown]
# The *execution strategy* assigns blocks to stages, and stages to IPUs. With `AutoStage.AutoIncrement` each block is a separate stage,
# and the part before the first block is stage 0. With `AutoStage.SameAsIpu`, the default, blocks with the same `ipu_id` are one stage.
# A `Stage` that you define by hand may join several blocks: `Stage("B1", "B2")`.
#
# **Guess**: how many stages does each of these have?

# %%
by_hand = (poptorch.Stage("B1", "B2").ipu(0), poptorch.Stage("B3").ipu(1))
strategies = {
    "AutoIncrement": (poptorch.AutoStage.AutoIncrement,),
    "by hand": by_hand,
    "SameAsIpu": (poptorch.AutoStage.SameAsIpu,),
}
for name, arguments in strategies.items():
    print(f"{name}:")
    try:
        print_stages(InBlocks(), poptorch.PipelinedExecution(*arguments))
    except AssertionError as error:
        print(error)

# %% [markdown]
# ## 3. Run
#
# `Network` has four blocks: two convolutions, two linear layers. The loss is computed in the last block.
#
# Three numbers determine how many rows one call of the wrapped model consumes: the rows of a *micro-batch*, which one `forward` sees;
# *gradient accumulation*, the micro-batches of one update; and *device iterations*, the updates of one call.

# %%
options = poptorch.Options().showCompilationProgressBar(False)
options.deviceIterations(2)
options.Training.gradientAccumulation(8)
options.outputMode(poptorch.OutputMode.All)
options.setExecutionStrategy(mnist_pipeline.strategy("pipelined"))
loader = poptorch.DataLoader(options, train_set, batch_size=8, shuffle=True)
print("rows of one call: 8 x 8 x 2 =", loader.combinedBatchSize)

model = Network()
optimizer = poptorch.optim.AdamW(model.parameters(), lr=3e-3)
training = poptorch.trainingModel(model, options, optimizer)
losses = []
for _ in range(EPOCHS):
    for images, labels in loader:
        scores, loss = training(images, labels)
        losses.append(float(loss.mean()))
plt.figure(figsize=(6, 2.6), layout="constrained")
plt.plot(losses)
plt.xlabel("call")
plt.ylabel("mean loss")
plt.grid(alpha=0.3)
show()

# %% [markdown]
# The trained weights are in `model`. Inference has no backward. Four stages need four micro-batches in a call to be filled.

# %%
schedule = emulator.schedule(training)
training.destroy()
test_options = poptorch.Options().showCompilationProgressBar(False)
test_options.deviceIterations(4)
test_options.setExecutionStrategy(mnist_pipeline.strategy("pipelined"))
inference = poptorch.inferenceModel(model.eval(), test_options)
correct, seen = 0, 0
for images, labels in poptorch.DataLoader(test_options, test_set, batch_size=8):
    predictions = inference(images).argmax(dim=1)
    correct += int((predictions == labels).sum())
    seen += len(labels)
inference.destroy()
print(f"accuracy on {seen} images: {correct / seen:.1%}")
assert correct / seen > 0.8

figure, axes = plt.subplots(1, 8, figsize=(7, 1.2))
for axis, image, label, prediction in zip(axes, images, labels, predictions):
    axis.imshow(image[0].numpy(), cmap="gray_r")
    axis.set_title(int(prediction), color="black" if prediction == label else "red")
    axis.axis("off")
show()

# %% [markdown]
# Is it the same as plain PyTorch? We compare one call with a loop that makes the same two updates:

# %%
emulated, plain = copy.deepcopy(model).train(), copy.deepcopy(model).train()
images, labels = next(iter(loader))
training = poptorch.trainingModel(
    emulated, options.clone(), poptorch.optim.SGD(emulated.parameters(), lr=0.01)
)
training(images, labels)
training.destroy()

optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
for index, (x, y) in enumerate(zip(images.split(8), labels.split(8)), start=1):
    _, loss = plain(x, y)
    (loss / 8).backward()
    if index % 8 == 0:
        optimizer.step()
        optimizer.zero_grad()
furthest = max(
    (emulated.state_dict()[name] - value.detach()).abs().max().item()
    for name, value in plain.named_parameters()
)
print(f"after two updates the weights differ by at most {furthest:.1e}")
assert furthest < 1e-5

# %% [markdown]
# The script `mnist_pipeline.py` does all of this, with options on its command line: `python mnist_pipeline.py --help` lists them. Three of
# them matter here:
#
# - `--strategy sharded` runs one stage at a time; section 9 uses it.
# - `--offload-optimiser` keeps the optimiser's state outside of the chip; section 8 computes the price.
# - `--profile` writes a profile; section 4 opens it.
#
# **Guess**: which of them changes the loss?


# %%
def run_script(words):
    """Runs `mnist_pipeline.py` with these arguments, and returns its lines without the speeds."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        mnist_pipeline.main(words.split())
    lines = printed.getvalue().splitlines()
    return [line.rpartition(", ")[0] or line for line in lines if line.startswith(("Ep", "Acc"))]


work = tempfile.TemporaryDirectory()
profile = f"--profile --profile-dir {work.name}"
results = set()
for words in ("", "--strategy sharded", "--offload-optimiser", profile):
    print("$ python mnist_pipeline.py --epochs 1", words.replace(work.name, "profile"))
    lines = run_script(f"--epochs 1 {words}")
    results.add(tuple(lines))
    print(*lines, sep="\n")
print("files of the profile:", *sorted(path.name for path in Path(work.name).rglob("*.*")))
assert len(results) == 1

# %% [markdown]
# None of them does. They change where and when something is computed, but not what is computed.
#
# ## 4. Look
#
# `emulator.schedule` shows what each IPU does in each step of one update. `2F5` is the forward of stage 2 for micro-batch 5, `B` is a
# backward, and `U` is the update of the weights.

# %%
show(schedule)

# %% [markdown]
# Here is the same schedule as a picture. Time goes to the right, and the numbers are those of micro-batches. The phases are written
# above: at first the pipeline *fills*, then all IPUs work in both directions (*main*), then it *flushes*.
#
# **Guess** before you count: in which step do all four IPUs work in both directions for the first time?

# %%
schedule.plot()
show()

# %% [markdown]
# A micro-batch goes forward through all stages, and then backward through all of them. The last stage does both in the same step.
# Between `N + 1` stages there are `N` hops down and `N` hops up. So the first backward reaches the first IPU in step `2N + 1`. That is
# the first step in which all IPUs work in both directions. Four stages have three hops, so this is step seven. By then seven
# micro-batches have entered the pipeline, and an update needs at least seven of them. We count the steps in the schedules:


# %%
def first_full_step(num_stages):
    """Returns the first step in which each IPU has a forward and a backward, counted from 1."""
    text = emulator.schedule(small_pipeline(num_stages)).to_csv()
    rows = [line.split(",") for line in text.strip().splitlines()]
    return 1 + next(
        step
        for step, cells in enumerate(zip(*rows))
        if all("F" in cell and "B" in cell for cell in cells)
    )


def small_pipeline(num_stages, accumulation=16):
    """Returns a compiled pipeline of `num_stages` small stages."""
    model = nn.Module()
    model.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(num_stages)))
    for ipu, layer in enumerate(model.layers):
        poptorch.BeginBlock(layer, ipu_id=ipu)
    model.forward = lambda x: poptorch.identity_loss(model.layers(x), "mean")
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    wrapped = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    wrapped.compile(torch.zeros(accumulation, 4))
    return wrapped


print("stages  hops N  2N + 1  first step in which all IPUs work in both directions")
for num_stages in (2, 4, 8):
    hops, step = num_stages - 1, first_full_step(num_stages)
    print(f"{num_stages:6} {hops:7} {2 * hops + 1:7} {step:11}")
    assert step == 2 * hops + 1

# %% [markdown]
# ### A profile, read step by step
#
# `--profile` wrote `profile.pop`. The command `poptorch-emu view profile/mnist_training/profile.pop --open` makes a page of it and opens it in
# the browser. `emulator.page` writes the same page for a model that never ran. We take the encoder, and give the first IPU six of the twelve
# layers by mistake. Each panel of the page answers a question.

# %%
uneven = encoder((6, 2, 2, 2))
page = emulator.page(uneven[0], Path(work.name) / "encoder.html", uneven[1], system=SYSTEM)
print(f"{page.name}: one file of {page.stat().st_size / 1e6:.1f} MB, for any browser")
report = emulator.estimate(*uneven, system=SYSTEM)

# %% [markdown]
# **Summary: how fast is it, does it fit, and what limits it?** Below the figures, the page proposes changes, and shows the gain of
# each.
#
# ![The panel Summary of the page](../../docs/images/encoder_summary.png)

# %%
print(f"{report.speed} rows a second; limited by {report.bottleneck}")

# %% [markdown]
# **Timeline: who waits for whom?** Each row is an IPU. Look for the row with the fewest gaps: that is the slowest IPU. Move with the keys `w`, `a`, `s` and
# `d`. Press `f` on a box to follow its micro-batch through the stages.
#
# ![The panel Timeline of the page](../../docs/images/encoder_timeline.png)

# %%
for ipu in report.ipus:
    print(f"IPU {ipu.ipu} waits for {ipu.bubble_seconds / report.step_seconds:.0%} of the step")

# %% [markdown]
# **Memory: how full are the tiles, and of what?** The first IPU has the most weights, and also the largest stash.
#
# ![The panel Memory of the page](../../docs/images/encoder_memory.png)

# %%
tiles = emulator.tile_memory(*uneven, system=SYSTEM)
for ipu in tiles.ipus:
    parts = tiles.parts(ipu)
    print(
        f"IPU {ipu.ipu}: {tiles.largest_bytes(ipu) / 1024:.0f} KiB on the fullest tile; of a mean tile "
        f"weights take {parts['weight'] / 1024:.0f}, the stash {parts['stash'] / 1024:.0f}"
    )

# %% [markdown]
# **Operations: what takes the time?** No single operation takes much, so no single one is to blame. The first IPU simply has too many of them.
#
# ![The panel Operations of the page](../../docs/images/encoder_operations.png)

# %%
operations = report.operations()
cycles = sum(one.cycles for one in operations)
slowest = operations[0]
print(f"the slowest, {slowest.name}, has {slowest.cycles / cycles:.1%} of all cycles")
for ipu in report.ipus:
    share = sum(one.cycles for one in operations if one.ipu == ipu.ipu) / cycles
    print(f"all operations of IPU {ipu.ipu} have {share:.0%}")

# %% [markdown]
# So the first IPU has too much to do. Another cut corrects that.
#
# ## 5. Balance
#
# A pipeline is as fast as its slowest stage. **Guess**: how much faster is 3-3-3-3 than 6-2-2-2? Is it the best cut?

# %%
even = emulator.estimate(*encoder(), system=SYSTEM)
figure, axes = plt.subplots(2, 1, figsize=(9, 4.4), sharex=True, layout="constrained")
longest = 0.0
for axis, counts in zip(axes, ((6, 2, 2, 2), (3, 3, 3, 3))):
    events = emulator.timeline(*encoder(counts, accumulation=8), system=SYSTEM)
    events.plot(axis)
    axis.set_title(f"{counts}: {max(e.end_seconds for e in events) * 1e3:.1f} ms")
    longest = max(longest, max(e.end_seconds for e in events))
axes[0].set_xlim(0, longest * 1e3)
show()
for name, estimate in {"6-2-2-2": report, "3-3-3-3": even}.items():
    print(f"{name}: {estimate.speed} rows a second; limited by {estimate.bottleneck}")
assert report.throughput < even.throughput

# %% [markdown]
# Equal counts need not be the best. These are the times of the stages of 3-3-3-3 for a micro-batch:

# %%
print("stage  waits for the host  computes again  all of it")
for stage in even.stages:
    parts = sum(p.host_cycles for p in stage.parts), sum(p.recompute_cycles for p in stage.parts)
    times = [f"{cycles / even.clock_hz * 1e3:.2f} ms" for cycles in (*parts, stage.cycles)]
    print(f"{stage.stage:5} {times[0]:>19} {times[1]:>15} {times[2]:>10}")

# %% [markdown]
# The first stage also waits for its input. The last one does not recompute its activations. `emulator.plan_split` includes all of this:
# it tries all cuts between blocks, and prints the code of the best.

# %%
split = emulator.plan_split(*encoder(), num_ipus=4, system=SYSTEM)
show(split)
counts = tuple(len(stage.units) for stage in split.stages)
tiles = emulator.tile_memory(*encoder(counts), system=SYSTEM)
for stage, ipu in zip(split.stages, tiles.ipus):
    kib = stage.tile_bytes / 1024, tiles.largest_bytes(ipu) / 1024
    print(f"IPU {ipu.ipu}: plan_split expects {kib[0]:.0f} KiB, tile_memory plans {kib[1]:.0f} KiB")
print(f"{counts}: {four.speed} rows a second, as `what_if` said in section 1")
assert four.throughput >= even.throughput

# %% [markdown]
# To be quick, `plan_split` only adds up weights, optimiser state and activations, and assumes the same code on every IPU. `tile_memory`
# makes the complete plan, with the code of each IPU and the working memory of operations. Where the two differ, trust the plan.
#
# ## 6. Accumulate
#
# The pipeline fills and flushes once for each update. With `m` micro-batches in an update and `N` hops, an update takes `m + 2N` steps.
# **Guess**: which share of its time does a pipeline of four stages lose with 8 micro-batches, and which with 256?

# %%
accumulations = [8, 16, 32, 64, 128, 256]
sweep = emulator.what_if(*encoder(counts), sweep={"accumulation": accumulations}, system=SYSTEM)
show(sweep)
by_accumulation = [point.throughput for point in sweep.points]
print("micro-batches  lost by formula  lost, compared with the fastest")
for count, rate in zip(accumulations, by_accumulation):
    print(f"{count:13} {6 / (count + 6):15.0%} {1 - rate / max(by_accumulation):12.0%}")
assert by_accumulation == sorted(by_accumulation)

# %% [markdown]
# Where both columns agree, filling and flushing cause all of the loss. Accumulation has a price: the batch of an update grows, and it
# may train worse. Besides, a pipeline has a *stash*: a micro-batch leaves the inputs of a stage there until its backward. **Guess**:
# does the stash grow with the accumulation?

# %%
for count in (8, 32):
    print(f"{count} micro-batches in an update:")
    print(*str(emulator.schedule(small_pipeline(4, count))).splitlines()[-4:], sep="\n")

# %% [markdown]
# It does not: the first stage stashes seven micro-batches in both.
#
# ## 7. Iterate
#
# Device iterations repeat the whole update in one call. **Guess**: do they fill the pipeline, as accumulation does? Where do they help?
#
# We measure the digits on this computer, and use the model of the machine for the encoder. The horizontal axis of both plots shows the
# micro-batches of one call.


# %%
FACTORS = [1, 2, 4, 8, 16]  # in the tests: [1, 2]


def options_of(accumulation, iterations, mode=poptorch.OutputMode.Final):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.deviceIterations(iterations)
    options.Training.gradientAccumulation(accumulation)
    options.outputMode(mode)
    return options.setExecutionStrategy(mnist_pipeline.strategy("pipelined"))


def wrapped_network(options):
    torch.manual_seed(0)
    model = Network()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
    return poptorch.trainingModel(model, options, optimizer)


def measured(accumulation, iterations, mode=poptorch.OutputMode.Final):
    """Returns the number of rows that this computer trains in a second, without a loader."""
    training = wrapped_network(options_of(accumulation, iterations, mode))
    rows = 8 * accumulation * iterations
    batch = torch.zeros(rows, 1, 28, 28), torch.zeros(rows, dtype=torch.long)
    training(*batch)
    seconds, end = [], time.perf_counter() + SECONDS
    while not seconds or time.perf_counter() < end:
        start = time.perf_counter()
        training(*batch)
        seconds.append(time.perf_counter() - start)
    training.destroy()
    return rows / min(seconds)  # Other programs may slow down some calls.


windows = [8 * factor for factor in FACTORS]
wrapped = encoder(counts, accumulation=8)
sweep = emulator.what_if(*wrapped, sweep={"device_iterations": FACTORS}, system=SYSTEM)
by_iterations = [point.throughput for point in sweep.points]
curves = {
    "digits, measured here": (
        [measured(window, 1) for window in windows],
        [measured(8, factor) for factor in FACTORS],
    ),
    "encoder, modelled for the machine": (by_accumulation[: len(FACTORS)], by_iterations),
}
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for axis, (title, pair) in zip(axes, curves.items()):
    for name, rates in zip(("more accumulation", "more device iterations"), pair):
        axis.semilogx(windows, rates, "o-", base=2, label=name)
        print(f"{title}, {name}: from {rates[0]:,.0f} to {rates[-1]:,.0f} rows a second")
    axis.set(title=title, xlabel="micro-batches of one call", ylabel="rows per second")
    axis.set_ylim(0)
    axis.grid(alpha=0.3)
axes[0].legend(fontsize=8)
show()
assert max(by_iterations) < by_accumulation[1]

# %% [markdown]
# On the machine, accumulation fills the pipeline and device iterations do not: each update fills and flushes again. Iterations save the
# work of your program for each call: Python, the loader, the transfer of results. The model of the machine counts such work only if you
# specify it. On this computer the engine runs on the same processor as Python, and the measured curves show what a call costs here.
#
# ### The outputs
#
# `OutputMode.All` brings the results of each micro-batch to the host, `Final` only those of the last. **Guess** the price, for a model that
# returns its scores, and for one that returns all its activations.

# %%
for name in ("Final", "Sum", "All"):
    rate = measured(8, 4, poptorch.OutputMode[name])
    print(f"digits, {name}: {rate:,.0f} rows a second, measured here")
wrapped = encoder(counts, change=lambda options: options.outputMode(poptorch.OutputMode.All))
report = emulator.estimate(*wrapped, system=SYSTEM)
milliseconds = report.stages[-1].forward.output_cycles / report.clock_hz * 1e3
print(f"encoder, Final: {four.speed} rows a second, modelled")
print(
    f"encoder, All: {report.speed} rows a second, modelled; its last stage waits for "
    f"{milliseconds:.3f} ms for each micro-batch"
)

# %% [markdown]
# The last stage pays the price. For losses and counts of right answers `Sum` or `Final` is enough.
#
# ### Batches in time
#
# While the model works, another process can load the next batches: `DataLoaderMode.Async`. [Data loading](../data_loading/data_loading.ipynb)
# measures what that gains. By default the other process starts clean and imports your program. A program must therefore guard its main part.
# Otherwise the other process would start to train as well. **Guess** what happens without the guard.

# %%
PROGRAM = """\
import torch
import poptorch_emu as poptorch


def main():
    rows = torch.utils.data.TensorDataset(torch.arange(8.0))
    mode = poptorch.DataLoaderMode.Async
    loader = poptorch.DataLoader(poptorch.Options(), rows, batch_size=4, mode=mode)
    print([batch.tolist() for (batch,) in loader])


"""
GUARD = 'if __name__ == "__main__":\n    '
GUARDS = {"with the guard": GUARD, "without it": ""}  # in the tests: {"without it": ""}
started = {}
for name, guard in GUARDS.items():
    script = Path(work.name) / f"{name.replace(' ', '_')}.py"
    script.write_text(PROGRAM + guard + "main()\n")
    started[name] = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
for name, program in started.items():
    last = program.communicate()[0].strip().splitlines()[-1]
    print(f"{name}: {last[:300]}")
    assert (program.returncode == 0) == bool(GUARDS[name])

# %% [markdown]
# ## 8. Offload
#
# AdamW keeps two numbers for each weight. They are needed once in an update, so they can be kept in *streaming memory*, outside the
# chip. **Guess**: how much memory does that save, and how does the price depend on accumulation?


# %%
def offload(options):
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(location)


outside = emulator.tile_memory(*encoder(counts, change=offload), system=SYSTEM)
for where, plan in {"on the chip": tiles, "outside": outside}.items():
    print(f"{plan.most / 1024} KiB on the fullest tile with the state {where}")
settings = {"accumulation": [8, 64, 256], "offload": ["nothing", "optimizer"]}
points = emulator.what_if(*encoder(counts), sweep=settings, system=SYSTEM).points
print("micro-batches of an update   price of offloading")
prices = []
for count, on_chip, off_chip in zip(settings["accumulation"], points[::2], points[1::2]):
    prices.append(1 - off_chip.throughput / on_chip.throughput)
    print(f"{count:26}   {prices[-1]:.1%}")
assert prices == sorted(prices, reverse=True)

# %% [markdown]
# The state is fetched once in an update, so the price falls with the number of micro-batches. [Memory](../memory/memory.ipynb) shows
# more ways to save memory.
#
# ## 9. Debug
#
# When a pipeline trains badly, is the pipeline wrong, or the model? *Sharded* execution runs one stage at a time, with the same blocks.
# A single micro-batch is enough for it, so you can examine a single one.
#
# **Guess**: which of these two lines raises an error?

# %%
for name in ("pipelined", "sharded"):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.setExecutionStrategy(mnist_pipeline.strategy(name))
    training = wrapped_network(options)
    try:
        _, loss = training(images[:1], labels[:1])
        print(f"{name}: the loss of one image is {loss.item():.4f}")
    except poptorch.Error as error:
        print(f"{name}: {error.message[:155]}...")
    training.destroy()

# %% [markdown]
# The IPUs work one after the other. **Guess** what that costs.

# %%
figure, axes = plt.subplots(2, 1, figsize=(9, 4.4), sharex=True, layout="constrained")
for axis, kind in zip(axes, (poptorch.PipelinedExecution, poptorch.ShardedExecution)):
    events = emulator.timeline(*encoder(counts, accumulation=8, kind=kind), system=SYSTEM)
    events.plot(axis)
    axis.set_title(f"{kind.__name__}: {max(e.end_seconds for e in events) * 1e3:.1f} ms")
    print(axis.get_title())
show()

# %% [markdown]
# If both strategies give the same numbers, the cut is not the cause. `emulator.compare` compares a run with plain PyTorch, operation by
# operation, and names the first one that differs by more than rounding.

# %%
found = {}
for name in ("pipelined", "sharded"):
    training = wrapped_network(options_of(8, 1).setExecutionStrategy(mnist_pipeline.strategy(name)))
    found[name] = training(images[:64], labels[:64])[1].item()
    print(f"{name}: loss {found[name]!r}")
    if name == "pipelined":
        verdict = str(emulator.compare(training, images[:64], labels[:64])).splitlines()
        print("against plain PyTorch:", " ".join(verdict[:2]))
    training.destroy()
assert found["pipelined"] == found["sharded"]
work.cleanup()

# %% [markdown]
# ## What you have seen
#
# Cut the model so that the stages take the same time. Accumulate enough micro-batches to fill the pipeline. Iterate to save calls.
# Offload state that is needed only once in an update. Debug with the same blocks, sharded.
#
# [Schedules](../schedules/schedules.ipynb) shows other orders of work. [Memory](../memory/memory.ipynb) makes room, and
# [scaling](../scaling/scaling.ipynb) adds replicas. Then try [the course](../course/course.ipynb).
