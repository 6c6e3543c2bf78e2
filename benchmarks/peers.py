"""The tuned peers of `speed.py`: code that an expert would write for the same work on a CPU.

If no layer mixes rows, an expert joins the micro-batches of one update, or of a whole call in
inference, because the gradient of the mean is the same. Optimisers are fused, and gradients of
embeddings are sparse if the optimiser's rule allows it. After an update all weights equal those of
the plain loop, except for the order of sums.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from models import Case
from torch import nn

Step = Callable[[], object]

# Peers for inference only, with the packages that they need.
FOR_INFERENCE = {
    "openvino": ("openvino", "onnx", "onnxscript"),
    "onnxruntime": ("onnxruntime", "onnx", "onnxscript"),
}


@dataclass(frozen=True)
class Expert:
    """Choices of an expert for PyTorch.

    Attributes:
        is_compiled: whether model and gradients are compiled by `torch.compile`.
        is_searched: whether Inductor also times several kernels for each product (max-autotune).
        has_channels_last: whether weights and images are in the order of channels last.
    """

    is_compiled: bool = False
    is_searched: bool = False
    has_channels_last: bool = False


# The peers in PyTorch, by the names of `speed.py`.
EXPERTS = {
    "expert": Expert(),
    "expert, channels last": Expert(has_channels_last=True),
    "expert, compiled": Expert(is_compiled=True),
    "expert, compiled, channels last": Expert(is_compiled=True, has_channels_last=True),
    "expert, max-autotune": Expert(is_compiled=True, is_searched=True),
}


def expert_step(case: Case, expert: Expert = EXPERTS["expert"]) -> Step:
    """Returns the step of an expert in PyTorch."""
    is_compiled = expert.is_compiled
    if is_compiled:
        # Inductor's C++ wrapper needs less time between its kernels than its Python wrapper.
        torch._inductor.config.cpp_wrapper = True
        torch._inductor.config.freezing = case.make_optimizer is None
        torch._inductor.config.max_autotune = expert.is_searched
    model, batches = case.make(), _joined(case)
    if expert.has_channels_last:
        model = model.to(memory_format=torch.channels_last)
        batches = [
            (images.contiguous(memory_format=torch.channels_last), *others)
            for images, *others in batches
        ]
    if case.make_optimizer is None:
        return _inference(model.eval(), batches, is_compiled)
    optimizers = _optimizers(case, model, has_sparse=not is_compiled)
    forward = torch.compile(model) if is_compiled else model
    share = 1 if not case.mixes_rows else case.accumulation

    def step() -> None:
        for index, batch in enumerate(batches, start=1):
            _, loss = forward(*batch)
            (loss / share).backward()
            if index % share == 0:
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()

    return step


def _joined(case: Case) -> list[tuple[torch.Tensor, ...]]:
    """Returns the batches of a call, as large as possible without changing a result."""
    rows = case.rows
    if case.make_optimizer is None:
        rows = case.samples
    elif not case.mixes_rows:
        rows *= case.accumulation
    batch = case.batch(case.samples)
    return list(zip(*(tensor.split(rows) for tensor in batch), strict=True))


def _optimizers(case: Case, model: nn.Module, has_sparse: bool) -> list[torch.optim.Optimizer]:
    """Returns fused optimisers; the one for embeddings accepts sparse gradients if possible."""
    assert case.make_optimizer is not None
    tables = [layer for layer in model.modules() if isinstance(layer, nn.Embedding)]
    if not has_sparse or not tables or not case.is_plain_sgd:
        return [case.make_optimizer(model.parameters(), fused=True)]
    for table in tables:
        table.sparse = True
    sparse = [table.weight for table in tables]
    dense = [p for p in model.parameters() if all(p is not weight for weight in sparse)]
    return [case.make_optimizer(dense, fused=True), case.make_optimizer(sparse)]


def _inference(model: nn.Module, batches: list[tuple[torch.Tensor, ...]], compiled: bool) -> Step:
    forward = torch.compile(model) if compiled else model

    def infer() -> None:
        with torch.inference_mode():
            for batch in batches:
                forward(*batch)

    return infer


def openvino_step(case: Case) -> Step:
    """Returns inference of the whole call by OpenVINO, in float32 on every processor."""
    import openvino

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    with _exported(case) as (path, arrays):
        compiled = openvino.Core().compile_model(path, "CPU", settings)
    request = compiled.create_infer_request()
    return lambda: request.infer(arrays, share_inputs=True, share_outputs=True)


def onnxruntime_step(case: Case) -> Step:
    """Returns inference of the whole call by ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    with _exported(case) as (path, arrays):
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    ports = session.get_inputs()
    named = {port.name: array for port, array in zip(ports, arrays, strict=True)}
    return lambda: session.run(None, named)


@contextmanager
def _exported(case: Case) -> Iterator[tuple[Path, list[np.ndarray]]]:
    """Writes the model as ONNX for one batch of all rows of a call; yields its path and inputs."""
    model, batch = case.make().eval(), case.batch(case.samples)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model, batch, path, dynamo=True, verbose=False)
        yield path, [tensor.numpy() for tensor in batch]


def is_for(candidate: str, case: Case) -> bool:
    """Returns whether a candidate runs a case, and differs there from the candidate before it."""
    if candidate in FOR_INFERENCE:
        return case.make_optimizer is None
    return case.has_images or candidate not in EXPERTS or not EXPERTS[candidate].has_channels_last


def lacks(candidate: str) -> str:
    """Returns the missing packages of a peer, or an empty text."""
    names = FOR_INFERENCE.get(candidate, ())
    return ", ".join(name for name in names if importlib.util.find_spec(name) is None)
