"""Writes exported stages as a program that needs only PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import fx

from poptorch_emu.export.pipeline_spec import PipelineSpec, input_name

# Files of plain PyTorch; in the program's folder they import each other by their bare names.
_FILES = {
    "export/pipeline_spec.py": "pipeline_spec.py",
    "export/pipeline_schedules.py": "pipeline_schedules.py",
    "export/pipeline_gradients.py": "pipeline_gradients.py",
    "export/pipeline_runner.py": "run.py",
    "export/formula_optimizer.py": "formula_optimizer.py",
    "update/formulas/rules.py": "rules.py",
    "update/formulas/arithmetic.py": "arithmetic.py",
    "update/formulas/clipping.py": "clipping.py",
    "update/formulas/loss_scale.py": "loss_scale.py",
    "update/formulas/optimizer_config.py": "optimizer_config.py",
}
_PACKAGES = ("poptorch_emu.export.", "poptorch_emu.update.formulas.")


def save_program(
    folder: Path,
    modules: Sequence[fx.GraphModule],
    spec: PipelineSpec,
    optimizer: Mapping[str, Any],
    states: Mapping[str, Any],
) -> None:
    """Writes all files of a program into `folder`, which is created.

    Files of an earlier program are replaced only after all new ones have been written.

    Args:
        folder: folder of the program.
        modules: one module for each stage.
        spec: spec of the pipeline.
        optimizer: class and groups of the optimiser.
        states: state tensors of the optimiser by names of parameters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".unfinished_", dir=folder) as unfinished:
        _write(Path(unfinished), modules, spec, optimizer, states)
        for file in Path(unfinished).iterdir():
            file.replace(folder / file.name)


def _write(
    folder: Path,
    modules: Sequence[fx.GraphModule],
    spec: PipelineSpec,
    optimizer: Mapping[str, Any],
    states: Mapping[str, Any],
) -> None:
    for index, module in enumerate(modules):
        received = tuple(tensor.example("cpu") for tensor in spec.stages[index].received)
        inputs = {
            input_name(number): spec.inputs[number].example("cpu")
            for number in spec.stages[index].inputs
        }
        exported = torch.export.export(_without_others(module), received, inputs)
        torch.export.save(exported, folder / f"stage_{index}.pt2")
    (folder / "pipeline.json").write_text(json.dumps(asdict(spec), indent=1))
    (folder / "optimizer.json").write_text(json.dumps(optimizer, indent=1))
    torch.save(dict(states), folder / "optimizer_state.pt")
    for name, copy in _FILES.items():
        text = Path(__file__).parents[1].joinpath(name).read_text()
        for package in _PACKAGES:
            text = text.replace(f"from {package}", "from ")
        (folder / copy).write_text(text)


def _without_others(module: fx.GraphModule) -> fx.GraphModule:
    """Returns the module without the keywords that it ignores, because each process passes its
    own."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.target != "**other_inputs":
            copied[node] = graph.node_copy(node, copied.__getitem__)
    return fx.GraphModule(module, graph)
