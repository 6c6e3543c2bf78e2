# %% [markdown]
# # Scaling: more replicas, and what holds them back
#
# A *replica* is a copy of the model on its own IPUs. Each replica works on its own rows, and then all of them add up their gradients.
# Twice as many replicas do twice the work in the same time, if nothing limits them. Three things may: the exchange of gradients, the
# input, and the user's own program. This notebook examines each with the model of the machine.
#
# The times here are *modelled* for a Bow-Pod64; [docs/fidelity.md](../../docs/fidelity.md) compares such figures with published ones.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import show

SYSTEM, WIDTH, LENGTH, ROWS = "bow-pod64", 512, 128, 8
LAYERS = 8  # in the tests: 4
REPLICAS = [1, 2, 4, 8, 16, 32, 64]  # in the tests: [1, 64]

# %% [markdown]
# ## Replicas do not change the result
#
# Two replicas with one micro-batch each make the same update as one replica with two.


# %%
class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.linear(x), y)


def updated(replicas, accumulation):
    torch.manual_seed(0)
    options = poptorch.Options().showCompilationProgressBar(False)
    options.replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    model = Regression()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    training(torch.randn(8, 3), torch.randn(8, 1))
    return training.state_dict()["linear.weight"]


difference = (updated(2, 1) - updated(1, 2)).abs().max().item()
print(f"the weights differ by at most {difference:.1e}")
assert difference < 1e-6

# %% [markdown]
# ## A model for the estimates
#
# Its weights are on the *meta* device, so they take no memory here. Nothing runs.


# %%
class Encoder(nn.Module):
    def __init__(self, num_ipus):
        super().__init__()
        self.num_ipus = num_ipus
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, dropout=0.0)
            for _ in range(LAYERS)
        )

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"layer{index}", ipu_id=index * self.num_ipus // LAYERS):
                x = layer(x)
                if index + 1 == LAYERS:
                    return poptorch.identity_loss((x * x).mean(), "none")


def encoder(num_ipus=1, accumulation=1, replicas=1, synthetic=True):
    """Returns a wrapped model, and its batch."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    options.replicationFactor(replicas)
    options.setExecutionStrategy(poptorch.PipelinedExecution())
    options.enableSyntheticData(synthetic)
    with torch.device("meta"):
        model = Encoder(num_ipus).half()
        batch = torch.empty(ROWS * accumulation * replicas, LENGTH, WIDTH, dtype=torch.half)
    optimizer = poptorch.optim.AdamW(model.parameters(), accum_type=torch.half)
    return poptorch.trainingModel(model, options, optimizer), batch


# %% [markdown]
# ## Speed against replicas
#
# `emulator.what_if` estimates the model with other settings. With one micro-batch in an update, the gradients are exchanged very often.
# With 16 they are exchanged a sixteenth as often.

# %%
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
times_as_fast = {}
for accumulation, synthetic in ((1, False), (1, True), (16, True)):
    wrapped = encoder(accumulation=accumulation, synthetic=synthetic)
    points = emulator.what_if(*wrapped, sweep={"replicas": REPLICAS}, system=SYSTEM).points
    name = f"accumulation {accumulation}, {'no input' if synthetic else 'with input'}"
    times_as_fast[name] = [point.throughput / points[0].throughput for point in points]
    axis.loglog(REPLICAS, times_as_fast[name], "o-", base=2, label=name)
    print(f"{name}: {REPLICAS[-1]} replicas are {times_as_fast[name][-1]:.1f} times as fast as one")
axis.loglog(REPLICAS, REPLICAS, "k:", base=2, label="ideal")
axis.set(xlabel="replicas of one IPU", ylabel="times as fast as one")
axis.legend(fontsize=8)
show()
assert (
    times_as_fast["accumulation 1, no input"][-1] < times_as_fast["accumulation 16, no input"][-1]
)

# %% [markdown]
# ## The exchange of gradients
#
# Replicas form a ring. Each sends parts of its gradients to the next, until each replica has all of them. With R replicas, each sends
# 2(R - 1)/R times the size of the gradients. That hardly grows with R. But more replicas share the links between the machines.

# %%
gradient_bytes = 2 * sum(p.numel() for p in Encoder(1).parameters())
print(f"gradients: {gradient_bytes / 1e6:.1f} MB in float16")
print("replicas   sent by each   exchange   share of the step")
for replicas in [r for r in REPLICAS if r > 1]:
    report = emulator.estimate(*encoder(accumulation=16, replicas=replicas), system=SYSTEM)
    sent = 2 * (replicas - 1) / replicas * gradient_bytes
    seconds = max(update.reduce_cycles for update in report.updates) / report.clock_hz
    share = seconds / report.step_seconds
    print(f"{replicas:8} {sent / 1e6:10.1f} MB {seconds * 1e3:7.2f} ms {share:12.1%}")

# %% [markdown]
# ## A formula for a pipeline, and the timeline
#
# The time of an update can be computed from three numbers. A pipeline of S stages with GA micro-batches has GA + 2S - 2 slots. Each
# slot lasts as long as the slowest stage. Then comes the update. The timeline of the machine should end at the same moment.

# %%
STAGES, ACCUMULATION = 4, 8
wrapped = encoder(num_ipus=STAGES, accumulation=ACCUMULATION, replicas=4)
report = emulator.estimate(*wrapped, system=SYSTEM)
slots = ACCUMULATION + 2 * STAGES - 2
update = max(update.cycles for update in report.updates)
by_formula = (slots * report.grid.slot_cycles + update) / report.clock_hz
events = emulator.timeline(*wrapped, system=SYSTEM)
by_timeline = max(event.end_seconds for event in events)
print(f"{slots} slots of {report.grid.slot_cycles / report.clock_hz * 1e3:.3f} ms, then the update")
print(f"by the formula {by_formula * 1e3:.2f} ms, by the timeline {by_timeline * 1e3:.2f} ms")
assert abs(by_formula / by_timeline - 1) < 0.05

axis = events.plot()
for slot in range(slots + 1):
    axis.axvline(slot * report.grid.slot_cycles / report.clock_hz * 1e3, color="k", lw=0.4, ls=":")
axis.set_ylabel("IPU of a replica")
show(report)

# %% [markdown]
# ## Amdahl's law: the part that does not scale
#
# Your program loads rows at a fixed speed, however many replicas there are. `HostWork` specifies this speed. From some number of
# replicas on, the loader limits everything.

# %%
LOADER = 20_000.0
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for speed, style in ((None, "C0o-"), (LOADER, "C3o-")):
    io = None if speed is None else emulator.HostWork(items_per_second=speed)
    speeds = []
    for replicas in REPLICAS:
        wrapped = encoder(accumulation=16, replicas=replicas, synthetic=False)
        speeds.append(emulator.estimate(*wrapped, system=SYSTEM, io=io).speed)
    rates = [one.value for one in speeds]
    name = "any loader" if speed is None else f"a loader of {speed:,.0f} rows per second"
    axis.loglog(REPLICAS, rates, style, label=name)
    print(f"{name}, rows per second:")
    print(f"  with 1 replica: {speeds[0]}; with {REPLICAS[-1]}: {speeds[-1]}")
axis.axhline(LOADER, color="k", ls=":")
axis.set(xlabel="replicas", ylabel="rows per second")
axis.legend(fontsize=8)
show()
assert rates[-1] <= LOADER * 1.001

# %% [markdown]
# [Data loading](../data_loading/data_loading.ipynb) shows remedies: another process, helpers, cheaper decoding.
#
# ## Several processes
#
# On large systems each host runs its own process, with some of the replicas. Each process reads its own share of the data. The loader
# ensures this if the options contain the number of the process.

# %%
numbers = torch.utils.data.TensorDataset(torch.arange(16))
for process in range(2):
    options = poptorch.Options()
    options.Distributed.configureProcessId(process, 2)
    loader = poptorch.DataLoader(options, numbers, batch_size=4)
    print(f"process {process}:", [rows.tolist() for (rows,) in loader])

# %% [markdown]
# ## What you have seen
#
# Scaling is good when the IPUs have much to do between two exchanges, and when the data arrive in time. Accumulate more; then load
# faster; then add replicas.
#
# Next: [transformers](../small_transformers/small_transformers.ipynb).
