"""Results of each function of `emulator`, for one small pipeline whose names contain markup."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator

NAME = "<b>&amp; layer"
BATCH = torch.ones(32, 16)


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            poptorch.Block.start(f"{NAME} {index}", ipu_id=index // 2)
            x = torch.relu(layer(x))
        return x, poptorch.identity_loss(x, "mean")


def make_training() -> poptorch.PoplarExecutor:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(8)
    model = Layers()
    return poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters()))


@cache
def training() -> poptorch.PoplarExecutor:
    """Returns the compiled pipeline."""
    torch.manual_seed(0)
    model = make_training()
    model.compile(BATCH)
    return model


def _read(folder: Path) -> Any:
    return emulator.read_report(emulator.report(training(), folder))


def _stopped(laboratory: Any) -> Any:
    laboratory.stop()
    return laboratory


def _own_table() -> Any:
    rows = [["0F0", "0F1", "", "0B0", "0B1"], ["", "1F0|1B0", "1F1|1B1"]]
    return emulator.schedules.from_table(rows)


# Call of each function by its name; each receives an empty folder.
VALUES: dict[str, Callable[[Path], Any]] = {
    "schedule": lambda _: emulator.schedule(training()),
    "memory": lambda _: emulator.memory(training()),
    "tile_memory": lambda _: emulator.tile_memory(training()),
    "estimate": lambda _: emulator.estimate(training()),
    "timeline": lambda _: emulator.timeline(training()),
    "summary": lambda _: emulator.summary(training()),
    "page": lambda folder: emulator.page(training(), path=folder / "page.html"),
    "lab": lambda folder: emulator.lab(
        training(), path=folder / "lab.html", sweep={"accumulation": [8, 16]}
    ),
    "live_lab": lambda _: _stopped(emulator.live_lab(training(), sweep={"accumulation": [8]})),
    "report": lambda folder: emulator.report(training(), folder),
    "trace": lambda folder: emulator.trace(training(), folder / "trace.json"),
    "read_report": _read,
    "what_if": lambda _: emulator.what_if(training(), sweep={"accumulation": [8, 16]}),
    "plan_split": lambda _: emulator.plan_split(training(), num_ipus=4),
    "autoplace": lambda _: emulator.autoplace(make_training(), BATCH, num_ipus=4),
    "compare": lambda _: emulator.compare(training()),
    "first_nonfinite": lambda _: emulator.first_nonfinite(training()),
    "numerics": lambda _: emulator.numerics(make_training(), BATCH),
    "record": lambda folder: emulator.record(training(), folder / "golden.run"),
    "compare_schedules": lambda _: emulator.compare_schedules(training()),
    "schedules": lambda _: emulator.schedules.zero_bubble_v(),
    "export_pipeline": lambda _: emulator.export_pipeline(training()),
}
# Names that return nothing, PyTorch's objects, or results of the model; types; and modules.
OTHERS = {
    "HostWork", "SchedulePlan", "TimePlan", "Verdict", "course", "install", "log_training",
    "register_custom_op", "set_latencies", "set_recomputation", "set_schedule", "set_value_guards",
    "show", "stream", "to_torch",
}  # fmt: skip
