# %% [markdown]
# # Observing tensors: what happens inside of the model
#
# A wrapped model runs as one program on the device. A `print` between two layers shows nothing useful, and no gradient can be read
# after `backward`. This notebook shows three other ways: print a tensor while the model runs, bring any tensor to the host by its name,
# and draw histograms of gradients.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import show

EPOCHS = 5  # in the tests: 2

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

# %% [markdown]
# ## Python's print
#
# `forward` runs in Python only once, while it is recorded. So a `print` in it shows no values, and only once.


# %%
class Printing(nn.Module):
    def forward(self, x):
        print("in forward:", tuple(x.shape))
        doubled = poptorch.ipu_print_tensor(x * 2, "doubled")
        return doubled + 1


options = poptorch.Options().showCompilationProgressBar(False)
options.deviceIterations(2)
inference = poptorch.inferenceModel(Printing(), options)
print(inference(torch.tensor([1.0, 2.0, 3.0, 4.0])))
print(inference(torch.tensor([5.0, 6.0, 7.0, 8.0])))

# %% [markdown]
# `poptorch.ipu_print_tensor` prints the values each time, once for each micro-batch. It writes to the standard error. Use its result:
# an unused tensor is not printed. In training it also prints the gradient.
#
# ## A model to look into


# %%
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.third = nn.Linear(64, 10)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images, labels):
        x = torch.sigmoid(self.first(images))
        x = torch.sigmoid(self.second(x))
        return self.loss(self.third(x), labels)


def make_training(options):
    torch.manual_seed(0)
    model = Network()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
    return poptorch.trainingModel(model, options.showCompilationProgressBar(False), optimizer)


# %% [markdown]
# ## The names of all tensors
#
# Each tensor of a compiled model has a name. Parameters keep your names. `Gradient___` stands before the gradient of a parameter, and
# `UpdatedVar___` before its new value. The others are named after the module and the operation that produced them.

# %%
training = make_training(poptorch.Options())
training.compile(images[:64], labels[:64])
names = training.getTensorNames()
training.destroy()
print(len(names), "tensors, some of them:")
print("\n".join(name for name in names if "first" in name))

# %% [markdown]
# ## Anchors
#
# `options.anchorTensor` brings a tensor to the host in each call, under a name that you choose. Call it before the model is compiled.
# `getAnchoredTensor` reads it. Let us check one against plain PyTorch.

# %%
options = poptorch.Options()
for layer in ("first", "second", "third"):
    options.anchorTensor(layer, f"Gradient___{layer}.weight")
training = make_training(options)

torch.manual_seed(0)
plain = Network()
plain(images[:64], labels[:64]).backward()

training(images[:64], labels[:64])
gradient = training.getAnchoredTensor("first")
furthest = (gradient - plain.first.weight.grad).abs().max().item()
print("gradient of the first layer:", tuple(gradient.shape))
print(f"furthest from plain PyTorch: {furthest:.1e}")
assert furthest < 1e-6

# %% [markdown]
# ## Histograms of gradients
#
# We train and keep the magnitudes of the gradients. Each column of the picture is one call. A brighter field means more gradients of
# that magnitude.

# %%
BINS = np.linspace(-8, 0, 49)
histograms = {layer: [] for layer in ("first", "second", "third")}
losses = []
for _ in range(EPOCHS):
    for rows in torch.randperm(len(images))[:1792].view(-1, 64):
        losses.append(training(images[rows], labels[rows]).item())
        for layer, columns in histograms.items():
            sizes = training.getAnchoredTensor(layer).abs().clamp(min=1e-12).log10()
            columns.append(np.histogram(sizes.numpy(), BINS)[0])
training.destroy()

figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), sharey=True, layout="constrained")
for axis, (layer, columns) in zip(axes, histograms.items()):
    axis.imshow(np.array(columns).T, origin="lower", aspect="auto", extent=(0, len(columns), -8, 0))
    axis.set(title=layer, xlabel="call")
axes[0].set_ylabel("log10 of a gradient")
show()

# %% [markdown]
# The nearer a layer is to the input, the smaller are its gradients: each sigmoid reduces them. In float16 those below 6e-8 would be
# zero, and many more would lose digits.

# %%
medians = {
    layer: BINS[np.searchsorted(np.cumsum(columns[-1]), columns[-1].sum() / 2)]
    for layer, columns in histograms.items()
}
for layer, median in medians.items():
    print(f"{layer}: half of the gradients are below 10^{median:.1f}")
assert medians["first"] < medians["third"]

# %% [markdown]
# ## How often
#
# Each anchor has its own output mode. With several micro-batches in a call, `All` brings the tensor of each, and `Final` only the last.

# %%
options = poptorch.Options()
options.deviceIterations(3)
options.Training.gradientAccumulation(2)
options.anchorTensor("every", "Gradient___third.bias", poptorch.OutputMode.All)
options.anchorTensor("last", "Gradient___third.bias", poptorch.OutputMode.Final)
training = make_training(options)
training(images[:96], labels[:96])
for name in ("every", "last"):
    print(f"{name}: shape {tuple(training.getAnchoredTensor(name).shape)}")

# %% [markdown]
# Anchors cost memory and time on the machine, so remove them when you no longer need them. This table shows the memory of the IPU
# (*modelled*):

# %%
memory = emulator.memory(training)
memory.plot()
show(memory)
training.destroy()

# %% [markdown]
# Next: [scaling](../scaling/scaling.ipynb).
