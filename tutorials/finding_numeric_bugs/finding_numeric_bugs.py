# %% [markdown]
# # Finding numeric bugs: where does my loss begin to differ?
#
# You port a model, and its loss is different. Or the loss becomes NaN after a thousand steps. Or it stops falling in half precision.
# Often one line is the cause, and everything after that line differs, too. This notebook finds the line in four cases, with one call
# for each:
#
# 1. a port that differs from the original: `emulator.compare`
# 2. options that change the numbers: `emulator.compare(against=options)`
# 3. NaN: autograd's anomaly mode, and `emulator.first_nonfinite`
# 4. a model that learns nothing in half precision: `emulator.numerics`

# %%
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import show

STEPS = 200  # in the tests: 60


def make_options(accumulation=1):
    made = poptorch.Options().showCompilationProgressBar(False)
    made.Training.gradientAccumulation(accumulation)
    return made


def train(model, options=None, lr=0.1, **settings):
    optimizer = poptorch.optim.SGD(model.parameters(), lr=lr, **settings)
    return poptorch.trainingModel(model, options or make_options(), optimizer)


# %% [markdown]
# ## 1. A port
#
# Here are the original and a port of it. The port contains two mistakes, and both are easy to make.


# %%
class Original(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32, eps=1e-12)
        self.attention = nn.Linear(32, 3 * 32)
        self.last = nn.Linear(32, 4)

    def scores(self, q, k):
        return q @ k.transpose(-1, -2) / 32**0.5

    def forward(self, x, target):
        x = self.norm(torch.relu(self.first(x)))
        q, k, v = self.attention(x).chunk(3, -1)
        x = x + self.scores(q, k).softmax(-1) @ v
        logits = self.last(x.mean(1))
        return logits, nn.functional.cross_entropy(logits, target)


class Port(Original):
    def __init__(self):
        super().__init__()
        self.norm.eps = 1e-3

    def scores(self, q, k):
        return q @ k.transpose(-1, -2)


torch.manual_seed(1)
data = torch.randn(8, 6, 16), torch.randint(4, (8,))
losses = [train(model())(*data)[1].item() for model in (Original, Port)]
print(f"the loss of the original is {losses[0]:.4f}, and that of the port is {losses[1]:.4f}")
assert abs(losses[0] - losses[1]) > 1e-3

# %% [markdown]
# First we check that the emulator computes the same as PyTorch. Without `against`, `emulator.compare` compares one training step of the
# model with plain PyTorch. The verdict *reordered sums* means that each operation differs by no more than rounding can explain. So the
# emulator is not the cause. The cause is a difference between the two models.

# %%
report = emulator.compare(train(Port()), *data)
print(report.verdict)
assert report.verdict <= emulator.Verdict.REORDERED

# %% [markdown]
# Now we record the original and compare the port with the record. In a real project, the file comes from the machine on which the
# original runs.

# %%
golden = emulator.record(train(Original()), "original.run", *data)
report = emulator.compare(train(Port()), *data, against=golden)
show(report)
assert report.first.value.module == "norm"

# %% [markdown]
# The report names the layer norm. Its inputs are equal in both runs, but its results are not, because its `eps` is different. We
# correct it and compare again:


# %%
class Mended(Port):
    def __init__(self):
        super().__init__()
        self.norm.eps = 1e-12


report = emulator.compare(train(Mended()), *data, against=golden)
first = report.first
print(report.verdict, "|", first.value.title, "|", first.value.line.rpartition("/")[2])
print("only in the original:", [value.kind for value in first.only_theirs])
assert "div" in [value.kind for value in first.only_theirs]

# %% [markdown]
# Only the original has a division. It scales the scores, and the port lacks it. One mistake can hide the next one. So correct and
# compare again until the verdict is *reordered sums* or *equal bits*.

# %%
report = emulator.compare(train(Original()), *data, against=golden)
print(report.verdict)
assert report.verdict is emulator.Verdict.EQUAL
golden.unlink()

# %% [markdown]
# Sometimes you cannot record the original, because it runs on a GPU, on real IPUs or in another framework. Then the outputs of a few
# modules are enough:

# %%
elsewhere, outputs = Original(), {}
for name in ("first", "norm", "attention", "last"):
    elsewhere.get_submodule(name).register_forward_hook(
        lambda _, __, output, name=name: outputs.__setitem__(name, output)
    )
elsewhere(*data)
report = emulator.compare(train(Port()), *data, against=outputs)
print(report.verdict, "|", report.first.value.module)
assert report.first.value.module == "norm"

# %% [markdown]
# ## 2. Options
#
# Two replicas should learn the same as one replica. Here they do not. The report shows where the difference begins: all gradients
# agree, but the update does not.

# %%
more = make_options(2).replicationFactor(2)
more.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
report = emulator.compare(train(Original(), make_options(4)), *data, against=more)
print(report.verdict, "|", report.first.value.direction.value, "|", report.first.value.name)
assert report.first.value.direction.value == "update"

# %% [markdown]
# The second options add up the gradients, but the first ones average them.
#
# ## 3. NaN
#
# A distance is the root of a sum of squares. Its gradient at zero is 0 · ∞, which is not a number. In PyTorch, autograd's anomaly mode
# finds the operation that produced the NaN. It does the same for a wrapped model.


# %%
class Distance(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 4, bias=False)

    def forward(self, x, target):
        distance = self.linear(x).square().sum(-1).sqrt()
        return distance, nn.functional.mse_loss(distance, target)


torch.manual_seed(2)
x, target = torch.randn(4, 16), torch.ones(4)
x[2] = 0.0
with torch.autograd.set_detect_anomaly(True):
    try:
        train(Distance(), make_options(4))(x, target)
    except poptorch.Error as error:
        print(error.message)
        assert "micro-batch 2" in error.message

# %% [markdown]
# The mode copies the weights in each call, and searches only after a call that produced a NaN. If you know the bad inputs, call
# `emulator.first_nonfinite(model, *inputs)` instead. It runs one training step and leaves the weights as they are.
#
# ## 4. Half precision
#
# This model has six sigmoids, and each of them makes the gradient smaller. In float32 the model learns. In float16 its first layers do not
# change at all.


# %%
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x, target):
        for layer in self.layers:
            x = torch.sigmoid(layer(x))
        return nn.functional.cross_entropy(x.float(), target)


x, target = torch.rand(64, 16), torch.randint(4, (64,))
report = emulator.numerics(train(Deep().half(), lr=1e-2), x.half(), target)
report.plot()
show(report)
assert report.gradients[0].at_one > 0.5

# %% [markdown]
# The picture shows why. Weights and activations are well within the range of float16. Most gradients are so small that float16 has fewer
# digits for them, or only zero. The report gives two pieces of advice. A loss scale makes the gradients larger. Stochastic rounding
# helps the updates, which are too small for a weight that is rounded to the nearest number. We follow both:

# %%
before = {name: weight.clone() for name, weight in Deep().half().named_parameters()}


def moved(scale, rounds_at_random):
    """Trains the model and returns the share of changed weights in its first layer."""
    chosen = make_options()
    chosen.Precision.enableStochasticRounding(rounds_at_random)
    model = Deep().half()
    training = train(model, chosen, lr=1e-2, loss_scaling=scale)
    for _ in range(STEPS):
        training(x.half(), target)
    training.destroy()
    name = "layers.0.weight"
    return (model.get_parameter(name) != before[name]).float().mean().item()


as_it_was, as_suggested = moved(1.0, False), moved(report.best.scale, True)
print(f"changed weights of the first layer: {as_it_was:.0%} before, {as_suggested:.0%} with both")
assert as_suggested > as_it_was

# %% [markdown]
# `emulator.page(model, path, numerics=report)` puts the same picture on the page of the model, beside a table of all operations.
#
# [Comparing runs](../../docs/guide/comparing_runs.md) explains each verdict and its bounds.
#
# Next: [memory](../memory/memory.ipynb).
