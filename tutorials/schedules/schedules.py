# %% [markdown]
# # Schedules: from GPipe to zero bubble
#
# A pipeline has two costs. IPUs wait for each other: this time is the *bubble*. Activations are kept until their backward: these are
# the *stash*. A schedule determines when each IPU works on which micro-batch, and so the size of both. This notebook goes from GPipe to
# schedules without a bubble. For each of them, guess first, look at the picture, and then read the numbers.
#
# All schedules give the same bits. At the end, several of them train the same model, and we compare the losses.

# %%
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import show

schedules = emulator.schedules

# %% [markdown]
# ## GPipe
#
# Four IPUs, eight micro-batches. A forward takes one unit of time, a backward two. GPipe runs all forwards, then all backwards.
#
# **Guess**: for which part of the time does an IPU wait? Would 16 micro-batches halve it?

# %%
schedules.gpipe().plan(num_ipus=4, num_micro_batches=8).plot()
show()

# %%
for count in (4, 8, 16, 32):
    plan = schedules.gpipe().plan(num_ipus=4, num_micro_batches=count)
    print(f"{count:2} micro-batches: {plan.bubble:.1%} of the time, formula {3 / (count + 3):.1%}")
    assert abs(plan.bubble - 3 / (count + 3)) < 1e-9

# %% [markdown]
# The picture has three triangles in which IPUs wait: on the left, in the middle and on the right. On `p` IPUs they are together as long as
# `p - 1` micro-batches, however many micro-batches there are. So more micro-batches help. But the activations of each of them are kept
# until its backward.
#
# ## One forward, one backward
#
# 1F1B begins each backward as soon as it can. **Guess**: is the bubble smaller? And how many micro-batches does the first IPU stash?

# %%
schedules.one_f_one_b().plan(num_ipus=4, num_micro_batches=8).plot()
show()


# %%
def print_stashes(schedule, count=8):
    """Prints the stash of each stage on four IPUs, and the bubble."""
    print(f"{schedule.name}, {count} micro-batches")
    plan = schedule.plan(num_ipus=4, num_micro_batches=count)
    print(*str(plan).splitlines()[-1 - 4 * schedule.stages_per_ipu :], "", sep="\n")


print_stashes(schedules.gpipe())
for count in (8, 80):
    print_stashes(schedules.one_f_one_b(), count)
show(schedules.one_f_one_b().plan(num_ipus=4, num_micro_batches=8))

# %% [markdown]
# The bubble is the same. The stash is smaller: at most four micro-batches instead of eight. It stays four with ten times as many
# micro-batches.
#
# ## Several stages on each IPU
#
# The bubble is as long as a few stages. So make the stages shorter: give each IPU two stages of half the length, such as stages 0 and 4 to
# IPU 0. Then the triangles are half as large. In the picture the later stage of an IPU is lighter. **Guess** the price.

# %%
plan = schedules.interleaved_1f1b(2).plan(num_ipus=4, num_micro_batches=8)
plan.plot()
show()
print(f"bubble {plan.bubble:.1%}, formula {3 / (2 * 8 + 3):.1%}")
for schedule in (schedules.one_f_one_b(), schedules.interleaved_1f1b(2)):
    grid = schedule.plan(num_ipus=4, num_micro_batches=8).grid
    print(f"{schedule.name}: a micro-batch crosses {grid.num_stages - 1} times from IPU to IPU")
print_stashes(schedules.interleaved_1f1b(2))

# %% [markdown]
# More than twice as many tensors cross from IPU to IPU. The stash grows, too: IPU 0 has stages 0 and 4, and both stash.
#
# ## The two halves of a backward
#
# The backward of a layer computes two things. The stage before waits for the gradient of the input. No stage waits for the gradients of the
# weights; only the update does. So cut the backward into two halves, `I` and `W`, each as long as a forward. The gradients of weights, hatched
# below, can fill bubbles. That is ZB-H1. **Guess** how much is left of the bubble of 1F1B.

# %%
plan = schedules.zero_bubble_h1().plan(num_ipus=4, num_micro_batches=8)
plan.plot()
show()
print(f"bubble {plan.bubble:.1%}: 3 units of 27, where 1F1B has 9 of 33")
print_stashes(schedules.zero_bubble_h1())

# %% [markdown]
# A third of the bubble is left, and no stage stashes more than the first one of 1F1B. ZB-V adds a second idea. Each IPU has two stages, one
# on the way down and one on the way up. So the first IPU also has the last stage, and the first micro-batch comes back to it early.

# %%
plan = schedules.zero_bubble_v().plan(num_ipus=4, num_micro_batches=8)
plan.plot()
show()
print(f"bubble {plan.bubble:.1%}, and {plan.bubble_within:.1%} within each IPU")

# %% [markdown]
# Within each IPU no bubble is left. What remains is at both ends, because the IPUs begin and end one after the other.
#
# ## What the machine says
#
# Up to here a forward and each half of a backward had the same length, and transfers took no time. A real model is different. Put your
# own in place of this one. It needs a loss, and blocks, between which it may be cut.


# %%
class Encoder(nn.Module):
    """Eight layers of a transformer; each is a block."""

    def __init__(self, width, num_layers=8):
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(num_layers)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, tokens, labels):
        x = None
        for number, layer in enumerate(self.layers):
            with poptorch.Block(f"layer{number}", ipu_id=number):
                x = layer(self.embedding(tokens) if x is None else x)
                if number == len(self.layers) - 1:
                    return nn.functional.cross_entropy(self.head(x.mean(dim=1)), labels)


MICRO_BATCHES = 16
WIDTH = 256  # in the tests: 64
STEPS = 3  # in the tests: 2


def training_by(schedule):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(MICRO_BATCHES)
    emulator.set_schedule(options, schedule)
    torch.manual_seed(0)
    model = Encoder(WIDTH)
    return poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))


def batch(rows):
    torch.manual_seed(1)
    return torch.randint(1000, (rows * MICRO_BATCHES, 64)), torch.randint(
        4, (rows * MICRO_BATCHES,)
    )


# %% [markdown]
# **Guess** which schedule is the fastest on four IPUs, and which takes the least memory.

# %%
report = emulator.compare_schedules(training_by("grouped"), *batch(4), num_ipus=4)
show(report)

# %%
report.plot()
show()

# %% [markdown]
# The column *by cycles* comes from the model of the machine. There, forward and backward have different lengths, stages differ, and tensors
# take time to cross. Compare it with the column *bubble*: the schedule with the smallest bubble on paper need not be the fastest for your
# model. In the plot, a schedule near the lower left corner has little bubble and little memory.
#
# To examine one of them, compile the model with it.

# %%
training = training_by("zero_bubble_v")
training.compile(*batch(4))
print(*str(emulator.schedule(training)).splitlines()[-7:], sep="\n")
emulator.timeline(training).plot()
show()
training.destroy()

# %% [markdown]
# ## The same bits
#
# The schedule changes no number, because gradients are always added up in the order of micro-batches.

# %%
NAMES = ["grouped", "gpipe", "zero_bubble_v"]  # in the tests: ["grouped", "zero_bubble_v"]
losses = {}
for name in NAMES:
    training = training_by(name)
    losses[name] = [training(*batch(1)).item() for _ in range(STEPS)]
    training.destroy()
    print(f"{name:14}", losses[name])
assert all(losses[name] == losses["grouped"] for name in NAMES)

# %% [markdown]
# ## Your own
#
# A schedule is a table. Write one row for each IPU. A table that is not legal is refused, and the error shows the place.

# %%
rows = [["0F0", "0F1", "0I0", "0I1", "0W0", "0W1"], ["1F0", "1I0", "1F1", "1I1", "1W0", "1W1"]]
print(f"bubble {schedules.from_table(rows).plan().bubble:.1%}")
rows[0] = ["0I0", "0F0", "0F1", "0I1", "0W0", "0W1"]
try:
    schedules.from_table(rows)
except poptorch.Error as error:
    print(error.message)

# %% [markdown]
# ## To try
#
# 1. Move one `W` in the table to another place. Does the bubble change? When is it refused?
# 2. `schedules.interleaved_1f1b(4)`: how far does the bubble of the picture fall, and that of the machine?
# 3. Give the encoder 4 layers more and compare again: which schedules benefit?
# 4. `emulator.schedule(training).to_pytorch_csv()` returns a table for PyTorch's pipelining; [the way on](../../docs/export.md) runs
#    the same schedule on GPUs.
