# %% [markdown]
# # Mixed precision: training in float16
#
# An IPU is much faster with float16 than with float32, and its memory holds twice as many numbers. But float16 has only eleven bits
# for the digits of a number, and a small range of sizes. This notebook shows three things that go wrong, and four remedies: loss
# scaling, automatic loss scaling, stochastic rounding, and sums in float32.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import show

EPOCHS = 12  # in the tests: 1

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

# %% [markdown]
# ## The numbers of float16

# %%
half = torch.finfo(torch.float16)
print("largest:", half.max)
print("smallest with all its digits:", half.smallest_normal)
print("smallest at all:", half.smallest_normal * half.eps)
print("next to 1:", 1 + half.eps)
print(
    "next to 2048:", torch.nextafter(torch.tensor(2048.0).half(), torch.tensor(3e3).half()).item()
)

# %% [markdown]
# ## Half precision in two calls
#
# `model.half()` makes weights float16, and `images.half()` the inputs. Where float16 and float32 are mixed, the rules in
# [docs/numerics.md](../../docs/numerics.md) decide the type: a layer computes in the type of its input, a loss in float32.


# %%
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images, labels):
        return self.loss(self.layers(images).float(), labels)


def train(dtype, loss_scaling=1.0, stochastic_rounding=False):
    """Returns the mean loss of each epoch."""
    torch.manual_seed(0)
    model = Network().to(dtype)
    options = poptorch.Options().showCompilationProgressBar(False)
    options.randomSeed(0)
    options.Precision.enableStochasticRounding(stochastic_rounding)
    optimizer = poptorch.optim.SGD(
        model.parameters(),
        lr=0.002,
        momentum=0.9,
        loss_scaling=loss_scaling,
        use_combined_accum=False,
    )
    training = poptorch.trainingModel(model, options, optimizer)
    generator = torch.Generator().manual_seed(0)
    means = []
    for _ in range(EPOCHS):
        rows = torch.randperm(len(images), generator=generator)[:1792].view(-1, 64)
        losses = [training(images[batch].to(dtype), labels[batch]) for batch in rows]
        means.append(torch.stack(losses).mean().item())
    training.destroy()
    return means


# %%
curves = {
    "float32": train(torch.float32),
    "float16": train(torch.float16),
    "float16, loss scaling 128": train(torch.float16, loss_scaling=128.0),
    "float16, stochastic rounding": train(torch.float16, stochastic_rounding=True),
}
for name, curve in curves.items():
    print(f"{name:30} last loss {curve[-1]:.4f}")

# %% [markdown]
# The curves are nearly the same. So we plot the distance of each from float32.

# %%
plt.figure(figsize=(6, 2.8))
for (name, curve), style in zip(curves.items(), ("-", "-", "--", "-")):
    distances = [loss / base - 1 for loss, base in zip(curve, curves["float32"])]
    plt.plot(distances, style, label=name)
plt.xlabel("epoch")
plt.ylabel("loss / loss of float32 - 1")
plt.legend(fontsize=7)
show()

# %% [markdown]
# ## Small updates are lost
#
# Near 1, float16 numbers are 2^-10 apart. An update of 2^-13 is rounded away each time. *Stochastic rounding* rounds it up or down by
# chance, so that the mean is right. Some weights move and others stay; on average they move by the right amount.


# %%
class Pushed(nn.Module):
    """The gradient of each weight is 1."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4096, dtype=torch.float16))

    def forward(self, x):
        return poptorch.identity_loss((self.weight * x).float().sum(), "none")


def push(stochastic_rounding, steps=40):
    """Returns the mean weight after each of many updates by -2^-13."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.randomSeed(0)
    options.Precision.enableStochasticRounding(stochastic_rounding)
    model = Pushed()
    training = poptorch.trainingModel(
        model, options, poptorch.optim.SGD(model.parameters(), lr=2.0**-13)
    )
    means = []
    for _ in range(steps):
        training(torch.ones(1, dtype=torch.float16))
        means.append(model.weight.float().mean().item())
    return means


nearest, stochastic = push(False), push(True)
exact = [1 - 2.0**-13 * step for step in range(1, 41)]
plt.figure(figsize=(6, 2.6))
plt.plot(exact, "k:", label="exact")
plt.plot(nearest, label="rounded to nearest")
plt.plot(stochastic, label="stochastic rounding")
plt.xlabel("update")
plt.ylabel("mean weight")
plt.legend()
show()
print(f"after 40 updates: exact {exact[-1]:.5f}, {nearest[-1]:.5f}, {stochastic[-1]:.5f}")
assert abs(stochastic[-1] - exact[-1]) < abs(nearest[-1] - exact[-1])

# %% [markdown]
# ## Small gradients become zero
#
# Zero is the only float16 number below 6e-8. So a smaller gradient becomes zero. *Loss scaling* multiplies the loss, and thereby all
# gradients. The optimiser divides by the same number. Here the true gradient of each weight is 1e-8.


# %%
class Faint(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, dtype=torch.float16))

    def forward(self, x):
        product = (self.weight * x).float()
        return poptorch.identity_loss((product * 1e-8).sum(), "none")


def faint(loss_scaling):
    """Returns the weight after one update with a learning rate of 1e6."""
    model = Faint()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1e6, loss_scaling=loss_scaling)
    options = poptorch.Options().showCompilationProgressBar(False)
    training = poptorch.trainingModel(model, options, optimizer)
    training(torch.ones(4, dtype=torch.float16))
    return model.weight[0].item()


print("right would be:", -1e-8 * 1e6)
for scale in (1.0, 1024.0):
    print(f"loss scaling {scale:6}: {faint(scale):.6f}")
assert faint(1.0) == 0 and abs(faint(1024.0) + 0.01) < 1e-3

# %% [markdown]
# ## Let the device find the scale
#
# Which scale is right? `setAutomaticLossScaling` lets the device double it while the gradients are small, and halve it when they come
# close to the largest number. The scale is an anchored tensor, so we can watch it.

# %%
options = poptorch.Options().showCompilationProgressBar(False)
options.Training.setAutomaticLossScaling(True)
options.anchorTensor("scale", "finalLossScale", poptorch.OutputMode.Final)
model = Network().half()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.002)
training = poptorch.trainingModel(model, options, optimizer)
scales = []
for _ in range(24):
    training(images[:64].half(), labels[:64])
    scales.append(training.getAnchoredTensor("scale").item())
training.destroy()
plt.figure(figsize=(6, 2.2))
plt.step(range(24), scales)
plt.yscale("log", base=2)
plt.xlabel("update")
plt.ylabel("loss scale")
show()

# %% [markdown]
# ## Partial sums
#
# A product adds up many small products. `setPartialsType(torch.half)` lets the IPU keep such sums in float16, which is faster. Here
# this is *accepted*: the numbers are always summed in float32, but the model of the machine's time includes the difference.


# %%
def product_time(dtype, partials):
    """Returns the report of a product, and the seconds of its operations."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Precision.setPartialsType(partials)
    with torch.device("meta"):
        layer = nn.Linear(2048, 2048, dtype=dtype)
        rows = torch.empty(4096, 2048, dtype=dtype)
    inference = poptorch.inferenceModel(layer, options)
    report = emulator.estimate(inference, rows, system="bow-pod16")
    return report, sum(stage.forward.operation_cycles for stage in report.stages) / report.clock_hz


for dtype, partials in (
    (torch.float32, torch.float32),
    (torch.float16, torch.float32),
    (torch.float16, torch.float16),
):
    report, seconds = product_time(dtype, partials)
    print(f"{str(dtype)[6:]}, sums in {str(partials)[6:]}: {seconds * 1e6:5.0f} microseconds")
report.plot()
show(report)

# %% [markdown]
# ## Finding the first bad number
#
# With `enableFloatingPointExceptions` the device stops at the first operation that produces an infinity or a NaN, and reports its place
# in your program.


# %%
class Overflow(nn.Module):
    def forward(self, x):
        return torch.exp(x) * 2


options = poptorch.Options().showCompilationProgressBar(False)
options.Precision.enableFloatingPointExceptions(True)
try:
    poptorch.inferenceModel(Overflow(), options)(torch.tensor([1.0, 12.0]).half())
except poptorch.Error as error:
    print(error)

# %% [markdown]
# Next: [memory](../memory/memory.ipynb).
