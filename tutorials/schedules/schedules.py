# %% [markdown]
# # Schedules: from GPipe to zero bubble
#
# A pipeline has two prices: IPUs that wait (the *bubble*), and activations that wait (the *stash*). A schedule says who works on
# what when, and trades one price for the other. This notebook goes from GPipe to schedules without a bubble. For each of them,
# guess first; then look at the picture; then at the numbers.
#
# All schedules give the same bits. At the end your own model is trained by two of them, and compared.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

schedules = emulator.schedules
plt.rcParams["figure.dpi"] = 56

# %% [markdown]
# ## GPipe
#
# Four IPUs, eight micro-batches. A forward takes one unit of time, a backward two. GPipe runs all forwards, then all backwards.
#
# **Guess**: for which part of the time does an IPU wait? Would 16 micro-batches halve it?

# %%
schedules.gpipe().plan(num_ipus=4, num_micro_batches=8).plot()
plt.show()

# %%
for count in (4, 8, 16, 32):
    plan = schedules.gpipe().plan(num_ipus=4, num_micro_batches=count)
    print(f"{count:2} micro-batches: {plan.bubble:.1%} of the time, formula {3 / (count + 3):.1%}")
    assert abs(plan.bubble - 3 / (count + 3)) < 1e-9

# %% [markdown]
# The picture has a triangle on the left, where the pipeline fills, one in the middle and one on the right. Together they are
# as long as `p - 1` micro-batches on `p` IPUs, whatever their number is. So more micro-batches help; but each of them leaves its
# activations until its backward.
#
# ## One forward, one backward
#
# 1F1B begins a backward as soon as there is one to begin. **Guess**: is the bubble smaller? And what does the first IPU stash?

# %%
schedules.one_f_one_b().plan(num_ipus=4, num_micro_batches=8).plot()
plt.show()

# %%
for make in (schedules.gpipe, schedules.one_f_one_b):
    print(*str(make().plan(num_ipus=4, num_micro_batches=8)).splitlines()[-5:], "", sep="\n")

# %% [markdown]
# The bubble is the same. What changed is the stash: at most four micro-batches instead of eight, and no more with 800.
#
# ## Several stages on each IPU
#
# The bubble is as long as some stages. So make stages shorter: with two of half the length on each IPU, stage 0 and 4 on IPU 0,
# the triangles are half as large. In pictures later stages of an IPU are lighter. **Guess** the price.

# %%
plan = schedules.interleaved_1f1b(2).plan(num_ipus=4, num_micro_batches=8)
plan.plot()
plt.show()
print(f"bubble {plan.bubble:.1%}, formula {3 / (2 * 8 + 3):.1%}")

# %% [markdown]
# Twice as many tensors cross from IPU to IPU, and the first IPU begins with more forwards.
#
# ## A backward is two things
#
# A layer's backward computes the gradient of its input, for which the stage before waits, and the gradients of its weights, for
# which nobody waits until the update. Cut it: `I` and `W`, each as long as a forward. Gradients of weights, hatched below, can fill
# bubbles. That is ZB-H1. **Guess** how much is left of the bubble of 1F1B.

# %%
plan = schedules.zero_bubble_h1().plan(num_ipus=4, num_micro_batches=8)
plan.plot()
plt.show()
print(f"bubble {plan.bubble:.1%}: 3 units of 27, where 1F1B has 9 of 33")

# %% [markdown]
# A third, in the memory of 1F1B. ZB-V adds a second idea: two stages on each IPU, on the way down and on the way up, so that the
# first IPU also has the last stage and sees the first micro-batch come back early.

# %%
plan = schedules.zero_bubble_v().plan(num_ipus=4, num_micro_batches=8)
plan.plot()
plt.show()
print(f"bubble {plan.bubble:.1%}, and {plan.bubble_within:.1%} within each IPU")

# %% [markdown]
# Within each IPU nothing is left. What you see at both ends is that IPUs begin and end one after the other, while all of them
# update together.
#
# ## What the machine says
#
# Up to here a forward and each half of a backward were of one length, and nothing took time to cross. Your model knows better. Put
# it in place of this one: blocks that say where it may be cut, and a loss.


# %%
class Encoder(nn.Module):
    """Eight layers of a transformer; each is a block."""

    def __init__(self, width=256, num_layers=8):
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


def training_by(schedule):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(MICRO_BATCHES)
    emulator.set_schedule(options, schedule)
    torch.manual_seed(0)
    model = Encoder()
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
print(report)

# %%
report.plot()
plt.show()

# %% [markdown]
# *By cycles* is what the model of the machine says: forward and backward are not of one length, stages differ, and tensors that
# cross take time. A schedule that is best on paper need not be the best for your model. Read the plot from the lower left:
# what is nearer to the corner is better in both.
#
# To look into one of them, compile the model by it.

# %%
training = training_by("zero_bubble_v")
training.compile(*batch(4))
print(*str(emulator.schedule(training)).splitlines()[-7:], sep="\n")
emulator.timeline(training).plot()
plt.show()
training.destroy()

# %% [markdown]
# ## The same bits
#
# The order changes no number: sums of gradients are added up in the order of micro-batches, whatever the schedule.

# %%
losses = {}
for name in ("grouped", "gpipe", "zero_bubble_v"):
    training = training_by(name)
    losses[name] = [training(*batch(1)).item() for _ in range(3)]
    training.destroy()
    print(f"{name:14}", losses[name])
assert losses["grouped"] == losses["gpipe"] == losses["zero_bubble_v"]

# %% [markdown]
# ## Your own
#
# A schedule is a table. Write one row for each IPU; what is not legal is refused, with the place.

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
# 3. Give the encoder 4 layers more and compare again: which schedules profit?
# 4. `emulator.schedule(training).to_pytorch_csv()` is what PyTorch's pipelining reads;
#    [the way on](../../docs/export.md) runs the same schedule on GPUs.
