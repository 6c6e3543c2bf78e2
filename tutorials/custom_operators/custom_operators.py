# %% [markdown]
# # Custom operators
#
# `poptorch.custom_op` puts your own operator into a model. On IPUs such an operator is a C++ library for PopART. Those libraries need
# the IPU's software and cannot be loaded here. So you give the emulator another implementation, under the same name and domain: a
# Python function, or a PyTorch operator library in C++. The model does not change.
#
# We write three operators both ways, and train the same model with each.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.utils import cpp_extension

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import register_custom_op, show

STEPS = 50
BUILD_CPP = True  # in the tests: False
CPP_DOMAIN, PYTHON_DOMAIN = "tutorial.ops", "tutorial.python"

# %% [markdown]
# ## In Python
#
# An operator is a function of tensors, made of PyTorch's operations. Attributes are passed as arguments by name. `Cube` has its own
# backward function, whose arguments are the gradient and the inputs. PyTorch differentiates the others.

# %%
register_custom_op(
    "Cube",
    PYTHON_DOMAIN,
    lambda x: x * x * x,
    backward=lambda gradient, x: 3 * gradient * x * x,
)
register_custom_op("LeakyRelu", PYTHON_DOMAIN, lambda x, alpha: torch.where(x > 0, x, alpha * x))
register_custom_op("VectorScalarMultiply", PYTHON_DOMAIN, torch.mul)

# %% [markdown]
# ## In C++
#
# `custom_operators.cpp` beside this notebook defines the same operators with `TORCH_LIBRARY`. PyTorch compiles and loads it. That
# takes about half a minute and a C++ compiler.

# %%
if BUILD_CPP:
    library = tempfile.TemporaryDirectory()
    cpp_extension.load(
        "tutorial_ops",
        [str(Path("custom_operators.cpp").resolve())],
        extra_cflags=["-O2", "-std=c++20"],
        build_directory=library.name,
        is_python_module=False,
    )

# %% [markdown]
# ## The model
#
# It computes `cube(scale * leaky_relu(layer(x)))`. `custom_op` takes inputs, name, domain, version, and example tensors with the shape
# and type of the outputs. Only the domain decides which implementation runs.


# %%
class Model(torch.nn.Module):
    def __init__(self, domain):
        super().__init__()
        self.domain = domain
        self.layer = torch.nn.Linear(4, 3)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x, target):
        x = self.layer(x)
        (x,) = poptorch.custom_op(
            [x], "LeakyRelu", self.domain, 1, example_outputs=[x], attributes={"alpha": 0.1}
        )
        (x,) = poptorch.custom_op(
            [x, self.scale], "VectorScalarMultiply", self.domain, 1, example_outputs=[x]
        )
        (x,) = poptorch.custom_op([x], "Cube", self.domain, 1, example_outputs=[x])
        return x, torch.nn.functional.mse_loss(x, target)


# %%
def train(domain):
    """Returns the loss of each step."""
    torch.manual_seed(0)
    model = Model(domain)
    inputs, targets = torch.randn(16, 4), torch.randn(16, 3)
    options = poptorch.Options().showCompilationProgressBar(False)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.02)
    training = poptorch.trainingModel(model, options, optimizer)
    return [training(inputs, targets)[1].item() for _ in range(STEPS)]


losses = {domain: train(domain) for domain in [PYTHON_DOMAIN, *[CPP_DOMAIN] * BUILD_CPP]}
for domain, values in losses.items():
    print(f"{domain}: loss {values[0]:.4f} after 1 step, {values[-1]:.4f} after {len(values)}")

# %%
plt.figure(figsize=(6, 2.6))
for (domain, values), style in zip(losses.items(), ("C0-", "C1:")):
    plt.plot(values, style, lw=2, label=domain)
plt.xlabel("step")
plt.ylabel("loss")
plt.legend()
show()

# %% [markdown]
# ## What would the machine do?
#
# The emulator sees the operations inside your Python function, so it can estimate their time on the machine (*modelled*). It sees
# nothing inside an operator in C++; the report says so.

# %%
training = poptorch.trainingModel(Model(PYTHON_DOMAIN), poptorch.Options())
report = emulator.estimate(training, torch.randn(16, 4), torch.randn(16, 3), system="bow-pod16")
report.plot()
show(report)

# %% [markdown]
# ## When an operator is missing
#
# The error names the operator, the domain and a remedy.

# %%
try:
    train("tutorial.nowhere")
except poptorch.Error as error:
    print(error)

# %% [markdown]
# Next: [without IPUs](../without_ipus/without_ipus.ipynb).
