# %% [markdown]
# # Solutions of the course
#
# These are answers to the exercises of [the course](course.ipynb), each with its reason. Other answers are right, too. Try first.

# %%
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import course, schedules, show

SYSTEM = "bow-pod16"
answers = {}


def check(number, answer):
    answers[number] = answer
    assessment = course.check(number, answer)
    show(assessment)
    assert assessment.is_right


# %% [markdown]
# ## 1. Cut a model
#
# The layers are equal, so each IPU gets two of them. They stay in order: a value may only go to the same stage or to a later one.

# %%
model = course.Layers([1024] * 8)
for number, layer in enumerate(model.layers):
    poptorch.BeginBlock(layer, ipu_id=number // 2)

check(1, model)

# %% [markdown]
# ## 2. Fill the bubble
#
# A micro-batch goes through four stages forward and back. So the first comes out after 2 x 4 - 2 slots, and `m` micro-batches take
# `m + 6` slots. An IPU works in `m` of them. The bubble is `6 / (m + 6)`: at most a tenth from 54 micro-batches on. 64 of them have 512
# rows.
#
# Device iterations are no answer. They repeat the whole update, with its bubble.

# %%
for count in (16, 53, 54, 64):
    print(f"{count} micro-batches: bubble {6 / (count + 6):.1%}, {8 * count} rows")
options = poptorch.Options()
options.Training.gradientAccumulation(64)

check(2, options)

# %% [markdown]
# ## 3. Fit it into memory
#
# Two things depend on the rows: the activations, and the working memory of an operation. Smaller micro-batches need less of both. The
# price is small: short products use the tiles a little less well, but the pipeline has a smaller bubble.
#
# Moving the optimiser's state out of the chip takes time in each update. Less room for products makes them slower.

# %%
print("accumulation, offloaded: KiB of the fullest tile, rows a second")
for accumulation, is_offloaded in ((16, False), (16, True), (32, False), (64, False)):
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    if is_offloaded:
        location = poptorch.TensorLocationSettings().useOnChipStorage(False)
        options.TensorLocations.setOptimizerLocation(location)
    wrapped = course.wrapped(3, options)
    tiles = emulator.tile_memory(*wrapped, system=SYSTEM)
    speed = emulator.estimate(*wrapped, system=SYSTEM).speed
    print(f"{accumulation}, {is_offloaded}: {tiles.most / 1024} KiB, {speed} rows/s")

check(3, options)

# %% [markdown]
# ## 4. Balance
#
# A layer that is eight times as wide is not eight times as slow. Starting programs and normalising take the same time in all of them.
# So we do not guess: `emulator.plan_split` uses the modelled times, and prints the code.

# %%
start = course.wrapped(4, poptorch.PipelinedExecution())
split = emulator.plan_split(*start, num_ipus=4, system=SYSTEM)
show(split)
stages = [poptorch.Stage(*stage.units).ipu(stage.ipu) for stage in split.stages]

check(4, poptorch.PipelinedExecution(*stages))

# %% [markdown]
# ## 5. Pick a schedule
#
# An IPU that waits for a gradient can compute gradients of weights, which no other IPU needs. That is ZB-H1. It stashes no more than
# 1F1B does.

# %%
plan = schedules.zero_bubble_h1().plan(num_ipus=4, num_micro_batches=8)
plan.plot()
show()

check(5, schedules.zero_bubble_h1())

# %% [markdown]
# ## 6. Replicas against stages
#
# A long pipeline fills and drains for longer, and waits for its slowest stage. Replicas do not wait for each other, except for the
# exchange of gradients. So take as few stages as the memory allows.

# %%
COUNTS = [1, 2, 4, 8, 16]  # in the tests: [4]

print("IPUs of a replica: KiB of the fullest tile, rows a second")
for num_ipus in COUNTS:
    wrapped = course.wrapped(6, {"num_ipus": num_ipus, "replicas": 16 // num_ipus})
    tiles = emulator.tile_memory(*wrapped, system=SYSTEM)
    speed = emulator.estimate(*wrapped, system=SYSTEM).speed
    print(f"{num_ipus}: {tiles.most / 1024} KiB, fits: {tiles.worst_verdict}, {speed} rows/s")

check(6, {"num_ipus": 4, "replicas": 4})

# %% [markdown]
# ## 7. Half precision
#
# The loss is a millionth of a mean over 256 rows, so a gradient of a result is about 1e-8. The smallest number of float16 is 6e-8.
# Loss scaling multiplies all gradients by 1,024, and the update divides by it.


# %%
def in_float16(model):
    model = model.half()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=5e4, loss_scaling=1024.0)
    options = poptorch.Options().showCompilationProgressBar(False)
    return poptorch.trainingModel(model, options, optimizer)


check(7, in_float16)

# %% [markdown]
# ## 8. Find the bug
#
# `emulator.compare` goes through both runs. The mistake is the first operation with equal inputs and a different result. Every later
# difference only *follows*.

# %%
rows = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))


def wrap(model):
    options = poptorch.Options().showCompilationProgressBar(False)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    return poptorch.trainingModel(model, options, optimizer)


report = emulator.compare(wrap(course.suspect()), rows, rows, against=wrap(course.reference()))
print(*str(report).splitlines()[:6], sep="\n")

check(8, report.first.value.module)
