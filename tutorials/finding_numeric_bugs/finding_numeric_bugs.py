# %% [markdown]
# # Finding numeric bugs: where does my loss begin to differ?
#
# You port a model, and its loss is another one. Or it becomes NaN after a thousand steps, or it stops falling in half precision. The cause is
# one line, and everything after it differs, too. This notebook finds that line in four cases, with one call each:
#
# 1. a port that is not what the original is: `emulator.compare`
# 2. options that change the numbers: `emulator.compare(against=options)`
# 3. NaN: autograd's anomaly mode, and `emulator.first_nonfinite`
# 4. half precision that learns nothing: `emulator.numerics`

# %%
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

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
# The original, and a port of it in which somebody has made two mistakes that are easy to make.


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
print("losses:", losses)
assert abs(losses[0] - losses[1]) > 1e-3

# %% [markdown]
# First: does the emulator compute what PyTorch does? Without `against` a window of the model is compared with plain PyTorch. *Reordered sums*
# means that each operation is within the bound of rounding. So the difference is between the two models, and not made here.

# %%
report = emulator.compare(train(Port()), *data)
print(report.verdict)
assert report.verdict <= emulator.Verdict.REORDERED

# %% [markdown]
# Now the original is recorded, and the port is held against it. On a real project the file comes from the machine where the original runs.

# %%
golden = emulator.record(train(Original()), "original.run", *data)
report = emulator.compare(train(Port()), *data, against=golden)
print(report)
assert report.first.value.module == "norm"

# %% [markdown]
# The report names the layer norm, whose `eps` is another number, and how the inputs of it are still equal. We mend it and ask again:


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
# A division is only in the original: the scale of the scores. One mistake hides the next, so ask until the verdict is *reordered sums* or better.

# %%
report = emulator.compare(train(Original()), *data, against=golden)
print(report.verdict)
assert report.verdict is emulator.Verdict.EQUAL
golden.unlink()

# %% [markdown]
# Where the original cannot be recorded (on a GPU, on real IPUs, in another framework), the outputs of a few modules are enough:

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
# Two replicas should do what one does. Here they do not, and the table says in which direction it begins: all gradients agree, and the update
# does not.

# %%
more = make_options(2).replicationFactor(2)
more.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
report = emulator.compare(train(Original(), make_options(4)), *data, against=more)
print(report.verdict, "|", report.first.value.direction.value, "|", report.first.value.name)
assert report.first.value.direction.value == "update"

# %% [markdown]
# The second options add gradients up instead of averaging them.
#
# ## 3. NaN
#
# A distance is the root of a sum of squares. Its gradient at zero is 0 · ∞, which is not a number. PyTorch's users switch on autograd's anomaly
# mode; around a wrapped model it names the operation, too.


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
# It costs a copy of the weights in each call, and looks for NaN when a call has made some. `emulator.first_nonfinite(model, *inputs)` runs a
# window for inputs that you know to be bad.
#
# ## 4. Half precision
#
# Six sigmoids, each of which makes the gradient smaller. In float32 the model learns; in float16 its first layers do not move.


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
print(report)
axes = report.plot()
assert report.gradients[0].at_one > 0.5

# %% [markdown]
# The picture shows why. Weights and activations are well within float16; most gradients are where it has fewer digits or nothing but zero. The
# report says which loss scale moves them to the right, and that updates are too small for weights that are rounded to the nearest.
# We do both:

# %%
before = {name: weight.clone() for name, weight in Deep().half().named_parameters()}


def moved(scale, rounds_at_random):
    """Returns which share of the weights of the first layer changes."""
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
print(f"changed weights of the first layer: {as_it_was:.0%}, as suggested {as_suggested:.0%}")
assert as_suggested > as_it_was

# %% [markdown]
# `emulator.page(model, path, numerics=report)` draws the same on the page of the model, with a table of all operations.
#
# What the verdicts mean, and the bounds behind them: [comparing runs](../../docs/guide/comparing_runs.md). Next:
# [memory](../memory/memory.ipynb).
