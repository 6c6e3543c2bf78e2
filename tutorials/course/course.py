# %% [markdown]
# # A course of one afternoon: eight exercises on pipelines
#
# Each exercise has a task, an empty cell and a checker. Put your answer in place of the `...` in the empty cell, and run the cell. The
# checker says whether the answer is right. If it is wrong, the checker says why. You may try as often as you like.
#
# You should know the tutorials [pipelining](../pipelining/pipelining.ipynb) and [schedules](../schedules/schedules.ipynb). An exercise takes
# about twenty minutes. Guess first, then compute, then try. [Solutions](solutions.ipynb) are beside this notebook, each with a reason.
#
# Nothing here needs an IPU. The figures of speed and memory come from the model of the machine, for a Bow-Pod16.

# %%
import inspect

import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import course, schedules, show

SYSTEM = "bow-pod16"

# %% [markdown]
# All exercises but one use this model. `hidden` is the inner width of each layer.

# %%
print(inspect.getsource(course.Layer))
print(inspect.getsource(course.Layers))

# %% [markdown]
# ## 1. Cut a model
#
# The model has eight equal layers, and there are four IPUs. Put the layers on the IPUs so that each IPU has the same amount of work. The
# model must still compute the same results.
#
# The answer is the model. `poptorch.BeginBlock(layer, ipu_id=2)` puts a layer on IPU 2.

# %%
model = course.Layers([1024] * 8)

answer = ...  # your model

show(course.check(1, answer))

# %% [markdown]
# ## 2. Fill the bubble
#
# The pipeline has four equal stages and PopTorch's own schedule. A micro-batch has 8 rows. The IPUs should wait for at most 10% of the
# time. But an update may see at most 512 rows, since the model trains worse with more.
#
# **Guess first**: with `m` micro-batches in an update, how many slots does an update take, and in how many of them does an IPU wait?
#
# The answer is a `poptorch.Options()`.

# %%
answer = ...

show(course.check(2, answer))

# %% [markdown]
# ## 3. Fit it into memory
#
# The model has eight wide layers on two IPUs. An update has 32,768 rows. The options below divide them into 16 micro-batches, and then
# the model does not fit.
#
# Find options with which it fits. It must keep four fifths of its speed. The update must still see 32,768 rows: the rows
# of a micro-batch follow from the accumulation.
#
# **Guess first**: which part of the memory depends on the rows of a micro-batch, and which does not?

# %%
options = poptorch.Options()
options.Training.gradientAccumulation(16)
show(emulator.tile_memory(*course.wrapped(3, options), system=SYSTEM))

# %%
answer = ...

show(course.check(3, answer))

# %% [markdown]
# ## 4. Balance
#
# These twelve layers are not equal: the last three are eight times as wide inside as the first six. They are the blocks `layer0` to
# `layer11`. Here is the cut with three layers on each IPU. Its stages take very different times.
#
# Find a better one. Its speed should be within 3% of the speed of the best. The answer is a `poptorch.PipelinedExecution`.
#
# **Guess first**: is a layer that is eight times as wide inside eight times as slow?


# %%
def cut(*counts):
    """Returns the strategy with these numbers of layers on the IPUs, in order."""
    names = iter(f"layer{number}" for number in range(12))
    stages = [
        poptorch.Stage(*(next(names) for _ in range(count))).ipu(ipu)
        for ipu, count in enumerate(counts)
    ]
    return poptorch.PipelinedExecution(*stages)


show(emulator.estimate(*course.wrapped(4, cut(3, 3, 3, 3)), system=SYSTEM))

# %%
answer = ...

show(course.check(4, answer))

# %% [markdown]
# ## 5. Pick a schedule
#
# Four IPUs, eight micro-batches. Now you may not use more of them: the batch already has its largest size. The bubble should be at most
# 12% of the time. An IPU should stash the activations of at most 5 micro-batches. If an IPU has two half stages, a micro-batch in one
# of them counts as half of one.
#
# The answer is a value of `emulator.schedules`. `plan` shows the order of work in such a schedule.

# %%
plan = schedules.gpipe().plan(num_ipus=4, num_micro_batches=8)
plan.plot()
show()
print(f"bubble {plan.bubble:.1%}")

# %%
answer = ...

show(course.check(5, answer))

# %% [markdown]
# ## 6. Replicas against stages
#
# You have sixteen IPUs, a model of sixteen layers, and updates of 8,192 rows. You may use all IPUs for one long pipeline, or each IPU
# for a separate replica, or something in between. Find the fastest division that fits into the memory.
#
# **Guess first**: what costs time in a long pipeline, and what in many replicas?
#
# The answer is a dictionary with two numbers. `num_ipus` is the number of IPUs of a replica.

# %%
answer = ...  # such as {"num_ipus": 16, "replicas": 1}

show(course.check(6, answer))

# %% [markdown]
# ## 7. Half precision
#
# This model multiplies its loss by a millionth, because the loss is a small part of a larger one. The function below trains the model in
# float32. Make it train in float16, too. After 60 steps, the loss should be less than a quarter of the first loss.

# %%
print(inspect.getsource(course.Sensor))


def in_float32(model):
    optimizer = poptorch.optim.SGD(model.parameters(), lr=5e4)
    return poptorch.trainingModel(model, poptorch.Options(), optimizer)


# %% [markdown]
# The answer is a function like `in_float32`, but it must wrap a model with float16 weights. The checker calls your function with a new
# model, and trains what the function returns. The inputs are float16, too.
#
# **Guess first**: how large is a gradient of this model, and what is the smallest number of float16?

# %%
answer = ...  # a function of a model

show(course.check(7, answer))

# %% [markdown]
# ## 8. Find the bug
#
# `course.reference()` is a correct model. A colleague has rewritten it: `course.suspect()` has the same weights, but its results are
# slightly different. In which module is the mistake?

# %%
rows = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    expected, _ = course.reference()(rows, rows)
    found, _ = course.suspect()(rows, rows)
print(f"the largest difference is {(found - expected).abs().max():.1e}")

# %% [markdown]
# The answer is the path of a module, such as `"layers.0.up"`. [Comparing runs](../../docs/guide/comparing_runs.md) shows a function
# that compares one wrapped model with another.

# %%
answer = ...

show(course.check(8, answer))

# %% [markdown]
# ## What next
#
# Take your own model, and ask the same eight questions. `emulator.summary` answers several of them at once.
