# %% [markdown]
# # A pipeline of four IPUs
#
# A model that is too large for one IPU is cut into *stages*, each on an IPU of its own. While the second stage works on one
# micro-batch, the first already works on the next. This notebook trains a small convolutional network on handwritten digits that
# way, on virtual IPUs. Then it looks at the schedule and the timeline, and at what makes a pipeline fast.
#
# The same network is trained by the script `mnist_pipeline.py` beside this notebook, which `make demo` runs.

# %%
import copy

import matplotlib.pyplot as plt
import torch
from digit_images import train_and_test
from mnist_pipeline import Network
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

EPOCHS = 10  # in the tests: 4

torch.manual_seed(42)
train_set, test_set = train_and_test(None)
print(len(train_set), "images to train on,", len(test_set), "to test with")

# %% [markdown]
# ## Blocks
#
# `Network` opens a *block* for each part: `B1` and `B2` hold a convolution each, `B3` and `B4` a linear layer each, and the loss
# is computed in `B4`. Outside of a wrapped model blocks do nothing, so the network runs as it is in plain PyTorch.
#
# The execution strategy says which block belongs to which stage, and which IPU runs it.


# %%
def make_strategy(kind=poptorch.PipelinedExecution):
    return kind(*(poptorch.Stage(f"B{ipu + 1}").ipu(ipu) for ipu in range(4)))


# %% [markdown]
# ## How much one call does
#
# Three numbers decide what one call of the wrapped model consumes:
#
# - the rows of a *micro-batch*, what one `forward` sees;
# - *gradient accumulation*: how many micro-batches one weight update sums up. With backward the four stages are seven, and
#   a pipeline needs at least as many micro-batches;
# - *device iterations*: how many updates one call makes before results come back.

# %%
options = poptorch.Options().showCompilationProgressBar(False)
options.deviceIterations(2)
options.Training.gradientAccumulation(8)
options.outputMode(poptorch.OutputMode.All)
options.setExecutionStrategy(make_strategy())

loader = poptorch.DataLoader(options, train_set, batch_size=8, shuffle=True)
print("rows of one call:", loader.combinedBatchSize)

# %% [markdown]
# ## Training
#
# The first call captures the model, cuts it, schedules it and builds the program. Every other call only runs it.

# %%
model = Network()
optimizer = poptorch.optim.AdamW(model.parameters(), lr=3e-3)
training = poptorch.trainingModel(model, options, optimizer)

losses = []
for _ in range(EPOCHS):
    for images, labels in loader:
        scores, loss = training(images, labels)
        losses.append(float(loss.mean()))

plt.figure(figsize=(6, 2.6))
plt.plot(losses)
plt.xlabel("call")
plt.ylabel("mean loss")
plt.grid(alpha=0.3)
# %% [markdown]
# ## The schedule
#
# `emulator.schedule` shows what each IPU runs in each slot of one update. `2F5` is the forward of stage 2 for micro-batch 5, `B`
# is backward and `U` the weight update. At the left the pipeline fills, at the right it drains.

# %%
plan = emulator.schedule(training)
print(plan)

# %% [markdown]
# The same as a picture, as textbooks draw it: time goes to the right, and the numbers are those of micro-batches. Here backward is
# drawn twice as long as forward.

# %%
plan.plot()
training.destroy()

# %% [markdown]
# ## Testing
#
# The trained weights are in `model`. Inference has no backward, so the four stages need four micro-batches in a call.

# %%
test_options = poptorch.Options().showCompilationProgressBar(False)
test_options.deviceIterations(4)
test_options.setExecutionStrategy(make_strategy())

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

# %% [markdown]
# ## Is it the same as plain PyTorch?
#
# One call against a loop that makes the same two updates.

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

for name, value in plain.named_parameters():
    torch.testing.assert_close(emulated.state_dict()[name], value.detach(), rtol=1e-5, atol=1e-6)
print("the weights agree")

# %% [markdown]
# ## A model of real size, without running it
#
# How fast would a pipeline be on the machine? The emulator has a model of the machine's time. It needs shapes alone, so the weights can be on
# PyTorch's *meta* device and take no memory. We take an encoder of twelve Transformer layers on a Bow-Pod16.
#
# The figures below are *modelled*: [docs/fidelity.md](../../docs/fidelity.md) says how near they are to published ones.

# %%
SYSTEM, WIDTH, LENGTH, ROWS, LAYERS = "bow-pod16", 512, 128, 8, 12


class Encoder(nn.Module):
    """Twelve layers; `layers_of_ipu` says how many of them each IPU has."""

    def __init__(self, layers_of_ipu):
        super().__init__()
        self.ipus = [ipu for ipu, count in enumerate(layers_of_ipu) for _ in range(count)]
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, dropout=0.0)
            for _ in self.ipus
        )

    def forward(self, x):
        for index, (layer, ipu) in enumerate(zip(self.layers, self.ipus)):
            with poptorch.Block(f"layer{index}", ipu_id=ipu):
                x = layer(x)
                if index + 1 == len(self.layers):
                    return poptorch.identity_loss((x * x).mean(), "none")


def encoder(
    layers_of_ipu=(3, 3, 3, 3), accumulation=16, kind=poptorch.PipelinedExecution, change=None
):
    """Returns a wrapped model of meta tensors, and its batch."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    options.setExecutionStrategy(kind())
    if change is not None:
        change(options)
    with torch.device("meta"):
        model = Encoder(layers_of_ipu).half()
        batch = torch.empty(ROWS * accumulation, LENGTH, WIDTH, dtype=torch.half)
    optimizer = poptorch.optim.AdamW(model.parameters(), accum_type=torch.half)
    return poptorch.trainingModel(model, options, optimizer), batch


report = emulator.estimate(*encoder(), system=SYSTEM)
print(report)

# %% [markdown]
# ## The timeline
#
# `emulator.timeline` gives what each IPU does when. Here are eight micro-batches of a pipeline, and the same of *sharded*
# execution, where one IPU works at a time. Sharding saves memory as a pipeline does, but no time.

# %%
figure, axes = plt.subplots(2, 1, figsize=(9, 4.2), sharex=True, layout="constrained")
for axis, kind in zip(axes, (poptorch.PipelinedExecution, poptorch.ShardedExecution)):
    events = emulator.timeline(*encoder(accumulation=8, kind=kind), system=SYSTEM)
    events.plot(axis)
    axis.set_title(f"{kind.__name__}: {max(e.end_seconds for e in events) * 1e3:.1f} ms")
# %% [markdown]
# ## Balancing the stages
#
# A pipeline is as fast as its slowest stage. An IPU that has less to do waits, and the report calls this *bubble*. Let the first IPU have six
# of the twelve layers:

# %%
uneven = emulator.estimate(*encoder((6, 2, 2, 2)), system=SYSTEM)
for name, estimate in {"3-3-3-3": report, "6-2-2-2": uneven}.items():
    bubbles = " ".join(f"{i.bubble_seconds / estimate.step_seconds:4.0%}" for i in estimate.ipus)
    print(f"{name}: {estimate.throughput:6,.0f} rows a second, bubble of each IPU {bubbles}")
print("of 6-2-2-2: limited by", uneven.bottleneck)
assert uneven.throughput < report.throughput

# %% [markdown]
# You need not try them all. `emulator.plan_split` finds the cut between your blocks whose slowest stage is fastest, and prints the code.
# Here it gives the first IPU only two layers, because that one also waits for the input from the host.

# %%
split = emulator.plan_split(*encoder((6, 2, 2, 2)), num_ipus=4, system=SYSTEM)
print(split)

# %% [markdown]
# ## What accumulation does to the ramp
#
# Filling and emptying the pipeline takes the same time for every update. With more micro-batches in an update, it weighs less.

# %%
counts = [8, 16, 32, 64, 128, 256]
sweep = emulator.what_if(*encoder(), sweep={"accumulation": counts}, system=SYSTEM)
speeds = [point.throughput for point in sweep.points]
plt.figure(figsize=(6, 2.6))
plt.semilogx(counts, speeds, "o-", base=2)
plt.ylim(0)
plt.xlabel("micro-batches of an update")
plt.ylabel("rows per second")
plt.grid(alpha=0.3)
print(f"from {speeds[0]:,.0f} to {speeds[-1]:,.0f} rows a second")
assert speeds == sorted(speeds)

# %% [markdown]
# ## Recomputation
#
# Between its forward and its backward, a micro-batch's activations must be kept: a *stash*. The first stage has the most micro-batches
# on the way, so its stash is the deepest. A pipeline saves this memory by default: it keeps what enters a stage, and computes the rest again. That
# costs time.

# %%
print(emulator.what_if(*encoder(), sweep={"recomputation": ["pipeline", "none"]}, system=SYSTEM))

# %% [markdown]
# ## The optimiser's state in streaming memory
#
# AdamW keeps two numbers for each weight. They are needed only once in an update, so they can live outside of the chip. The price
# is paid once for each update. So it weighs less when an update has more micro-batches.


# %%
def offload(options):
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(location)


print("micro-batches of an update   price of offloading")
prices = []
for count in (8, 64, 256):
    on_chip = emulator.estimate(*encoder(accumulation=count), system=SYSTEM)
    off_chip = emulator.estimate(*encoder(accumulation=count, change=offload), system=SYSTEM)
    prices.append(1 - off_chip.throughput / on_chip.throughput)
    print(f"{count:26}   {prices[-1]:.1%}")
assert prices == sorted(prices, reverse=True)

# %% [markdown]
# ## What you have seen
#
# Cut the model so that the stages take the same time. Accumulate enough micro-batches. Recompute when the stash is too large, and move out
# of the chip what is needed once in an update. More about room: [memory](../memory/memory.ipynb). More about speed: [scaling](../scaling/scaling.ipynb).
