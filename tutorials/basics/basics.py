# %% [markdown]
# # Basics: a PyTorch program becomes a PopTorch program
#
# We train a small network on handwritten digits, first in plain PyTorch, then on a *virtual IPU*. The second program differs in
# ten lines. Then we save the weights, load them again and let the model recognise digits it has not seen.
#
# You need to know PyTorch. Nothing here needs an IPU or a network.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import show

EPOCHS = 10  # in the tests: 2
ROWS = 32

# %% [markdown]
# ## The data
#
# scikit-learn provides 1,797 pictures of 8 by 8 pixels. Four fifths are for training.

# %%
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
num_train = len(images) * 4 // 5
train = torch.utils.data.TensorDataset(images[order[:num_train]], labels[order[:num_train]])
test = torch.utils.data.TensorDataset(images[order[num_train:]], labels[order[num_train:]])
print(len(train), "pictures to train on,", len(test), "to test with")

# %% [markdown]
# ## Plain PyTorch
#
# Notice one thing. The model computes its own loss when it is given labels. PopTorch sends the whole training step to the device, and
# the loss is a part of that step.


# %%
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images, labels=None):
        scores = self.layers(images)
        if labels is None:
            return scores
        return scores, self.loss(scores, labels)


def shuffled():
    """Returns a loader; after the same seed it yields the same batches."""
    return torch.utils.data.DataLoader(train, batch_size=ROWS, shuffle=True, drop_last=True)


# %%
torch.manual_seed(0)
plain = Network()
optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-3)
plain_losses = []
torch.manual_seed(1)
for _ in range(EPOCHS):
    for x, y in shuffled():
        _, loss = plain(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plain_losses.append(loss.item())
print(f"loss {plain_losses[0]:.4f} at the beginning, {plain_losses[-1]:.4f} at the end")

# %% [markdown]
# ## The same on a virtual IPU
#
# - `poptorch.Options` holds the settings of a run. We keep nearly all defaults.
# - The optimiser comes from `poptorch.optim`. Its arguments are those of PyTorch's optimiser.
# - `poptorch.trainingModel` wraps model, options and optimiser.
# - One call of the wrapped model is a whole training step: forward, backward and update. So `zero_grad`, `backward` and `step` are no
#   longer needed.
#
# The first call *compiles*: it runs your `forward` once to record what it does, and builds a program from that. All other calls
# run the program.

# %%
torch.manual_seed(0)
model = Network()
options = poptorch.Options()
options.showCompilationProgressBar(False)
optimizer = poptorch.optim.AdamW(model.parameters(), lr=3e-3)
training = poptorch.trainingModel(model, options, optimizer)
losses = []
torch.manual_seed(1)
for _ in range(EPOCHS):
    for x, y in shuffled():
        _, loss = training(x, y)
        losses.append(loss.item())
print(f"loss {losses[0]:.4f} at the beginning, {losses[-1]:.4f} at the end")

# %% [markdown]
# Both programs started from the same weights and saw the same batches. So their losses should agree, and they do.

# %%
furthest = max(abs(a - b) for a, b in zip(losses, plain_losses))
print(f"The two losses are never further apart than {furthest:.1e}.")
assert furthest < 1e-3

plt.figure(figsize=(6, 2.8))
plt.plot(plain_losses, lw=3, alpha=0.4, label="plain PyTorch")
plt.plot(losses, lw=1, label="virtual IPU")
plt.xlabel("step")
plt.ylabel("loss")
plt.legend()
show()

# %% [markdown]
# ## Where are the weights?
#
# During training they are on the device. They are copied back when you read them, through `state_dict` or a parameter of the model, or
# when you call `copyWeightsToHost`. At the end, `destroy` releases the device.

# %%
weights = training.state_dict()
training.destroy()
for name, value in plain.named_parameters():
    torch.testing.assert_close(weights[name], value.detach(), rtol=1e-2, atol=1e-3)
print(*weights)

# %% [markdown]
# ## Save and load
#
# Weights are saved as in PyTorch. The file contains nothing about IPUs.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "weights.pt"
    torch.save(model.state_dict(), path)
    restored = Network()
    restored.load_state_dict(torch.load(path))

# %% [markdown]
# ## Inference
#
# `poptorch.inferenceModel` wraps a model without optimiser. We give it no labels, so it returns scores.
#
# A program is compiled for the shapes of its first inputs. So every batch must have the same number of rows: `drop_last` leaves out the
# last rows, which would not fill a batch.

# %%
inference = poptorch.inferenceModel(restored.eval(), options)
correct, seen = 0, 0
for x, y in torch.utils.data.DataLoader(test, batch_size=ROWS, drop_last=True):
    guesses = inference(x).argmax(dim=1)
    correct += int((guesses == y).sum())
    seen += len(y)
print(f"{correct} of {seen} pictures are recognised: {correct / seen:.1%}")
assert correct / seen > 0.8

figure, axes = plt.subplots(1, 8, figsize=(7, 1.2))
for axis, picture, guess, label in zip(axes, x, guesses, y):
    axis.imshow(picture.view(8, 8).numpy(), cmap="gray_r")
    axis.set_title(int(guess), color="black" if guess == label else "red")
    axis.axis("off")
show()

# %% [markdown]
# A batch of another size raises an error. It states the actual and the expected size.

# %%
try:
    inference(x[:5])
except poptorch.Error as error:
    print(error)
inference.destroy()

# %% [markdown]
# ## A compiled program in a file
#
# `save` of a wrapped model writes the program and the model. `poptorch.load` reads both, so that another process need not compile. Such
# a file can contain code: load only files that you trust.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder) / "digits.poptorch")
    again = poptorch.inferenceModel(restored, options)
    again.compile(x)
    again.save(path)
    loaded = poptorch.load(path)
    same = torch.equal(loaded(x), again(x))
print("The loaded program gives the same scores:", same)
assert same

# %% [markdown]
# ## What would the machine do?
#
# Your program runs here, on a processor. How fast would it be on a real IPU, and where would the time go? The emulator has a model of
# the machine, which `emulator.estimate` uses. The figures are *modelled*, and your model does not need to run.

# %%
batch = train[:ROWS]
training = poptorch.trainingModel(
    model, options.clone(), poptorch.optim.AdamW(model.parameters(), lr=3e-3)
)
report = emulator.estimate(training, *batch, system="bow-pod16")
report.plot()
show(report)
training.destroy()

# %% [markdown]
# Look at *sync* and *calls*. Such a small model starts many short programs, and each call takes time to start. Later tutorials explain each row.
#
# ## What you have seen
#
# The ten lines are: create the options, create the optimiser, wrap, call. Next is [batching](../batching/batching.ipynb): the amount of
# work in one call.
