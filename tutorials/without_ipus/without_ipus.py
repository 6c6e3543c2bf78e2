# %% [markdown]
# # Without IPUs: tests in ordinary CI, and the way on
#
# You have a program that says `import poptorch`, but you have no IPU. This notebook shows three things. It runs the program unchanged. It
# tests the program with pytest on any computer. And it moves the program to plain PyTorch, for the day when you want to leave IPUs.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import show

# %% [markdown]
# ## A project
#
# Here is a small one, in its own folder: a model, a training script, and a test. None of the files mentions the emulator.

# %%
folder = tempfile.TemporaryDirectory()
project = Path(folder.name)

(project / "digits.py").write_text("""\
import poptorch
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 2)
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, x, labels):
        with poptorch.Block("first", ipu_id=0):
            x = torch.relu(self.first(x))
        with poptorch.Block("second", ipu_id=1):
            x = self.second(x)
            return x, self.loss(x, labels)


def make_training():
    model = Model()
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    return poptorch.trainingModel(model, options, optimizer)
""")

(project / "train.py").write_text("""\
import torch
from digits import make_training

torch.manual_seed(0)
training = make_training()
x = torch.randn(64, 8)
labels = (x.sum(1) > 0).long()
for step in range(30):
    output, loss = training(x, labels)
print(f"loss {loss.item():.3f}")
""")

(project / "test_digits.py").write_text("""\
import torch
from digits import make_training


def test_model_when_trained_then_the_loss_falls():
    training = make_training()
    x = torch.randn(64, 8)
    labels = (x.sum(1) > 0).long()
    losses = [training(x, labels)[1].item() for _ in range(20)]
    assert losses[-1] < losses[0]


def test_model_when_the_batch_is_odd_then_it_is_refused():
    try:
        make_training()(torch.randn(7, 8), torch.zeros(7).long())
    except AssertionError as error:
        assert "must be a multiple of" in str(error)
    else:
        raise RuntimeError("a batch of 7 rows cannot be cut into 4 micro-batches")
""")
print(*sorted(path.name for path in project.iterdir()))


# %%
def run(*arguments):
    """Runs Python in the project's folder and prints its output."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=project, capture_output=True, text=True, check=False
    )
    print(done.stdout.replace(str(project), "project"))
    assert done.returncode == 0, done.stderr


# %% [markdown]
# ## Run it unchanged
#
# `python -m poptorch_emu` makes `import poptorch` mean the emulator, and then runs your script with its own arguments.

# %%
run("-m", "poptorch_emu", "train.py")

# %% [markdown]
# ## Test it with pytest
#
# The plugin does the same for tests. It also gives each test the same random state.

# %%
run("-m", "pytest", "-p", "poptorch_emu.pytest_plugin", "-p", "no:cacheprovider", "-q", "-rA")

# %% [markdown]
# In CI this is one step. On GitHub it may look like this:
#
# ```yaml
# - run: pip install .   # your project, its tests' needs, and poptorch_emu
# - run: pytest -p poptorch_emu.pytest_plugin
#   env:
#     POPTORCH_EMU_OOM: error   # a model that would not fit on the machine fails its test
# ```
#
# ## The way on: the whole model
#
# `emulator.to_torch` gives you the trained model and its optimiser in plain PyTorch, with the optimiser's state. We continue the
# training in both and compare.


# %%
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 2)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, labels):
        with poptorch.Block("first", ipu_id=0):
            x = torch.relu(self.first(x))
        with poptorch.Block("second", ipu_id=1):
            x = self.second(x)
            return x, self.loss(x, labels)


torch.manual_seed(0)
model = Model()
options = poptorch.Options().showCompilationProgressBar(False)
options.Training.gradientAccumulation(4)
optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
training = poptorch.trainingModel(model, options, optimizer)
x = torch.randn(64, 8)
labels = (x.sum(1) > 0).long()
for _ in range(10):
    training(x, labels)

plain, plain_optimizer = emulator.to_torch(training)
print(type(plain).__name__, "and", type(plain_optimizer))

for _ in range(10):
    training(x, labels)
    plain_optimizer.zero_grad()
    plain(x, labels)[1].backward()
    plain_optimizer.step()

weights = training.state_dict()
furthest = max((weights[n] - p).abs().max().item() for n, p in plain.named_parameters())
print(f"after ten more steps the weights differ by at most {furthest:.1e}")
assert furthest < 1e-4

# %% [markdown]
# ## The way on: the pipeline
#
# Your blocks define where the model can be cut. `emulator.export_pipeline` makes stages of `torch.distributed.pipelining` from them,
# for CPUs and GPUs. Each stage is a module with the names of your weights.

# %%
pipeline = emulator.export_pipeline(training)
show(pipeline)
for index in range(pipeline.num_stages):
    module = pipeline.stage_module(index, "cpu")
    print(f"stage {index}:", *(name for name, _ in module.named_parameters()))

# %% [markdown]
# Two IPUs train these stages at the same time, each on its own micro-batch. The picture shows when each IPU works, and when it waits.
# Other processes will run the same stages.

# %%
schedule = emulator.schedule(training)
schedule.plot()
show(schedule)

# %% [markdown]
# `save` writes the stages and a script that trains them with `torchrun`, one process for each stage. Neither needs the emulator.

# %%
with tempfile.TemporaryDirectory() as exported:
    pipeline.save(exported)
    print(*sorted(path.name for path in Path(exported).iterdir()))
training.destroy()
folder.cleanup()

# %% [markdown]
# [docs/export.md](../../docs/export.md) describes the accuracy and the limits of an exported pipeline.
#
# Next: [profiling](../profiling/profiling.ipynb).
