"""Runs a sample beside eager PyTorch, and describes the outcome in a few words."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sample import Sample, tensors_in

import poptorch_emu as poptorch

# Tolerances for results that the engine computes in another order, after about ten layers.
_RELATIVE, _ABSOLUTE = 2e-3, 2e-4
# A tensor whose largest value is smaller is compared as if it had this one.
_SMALL = 1e-3
_STEPS, _LEARNING_RATE = 2, 0.01

# Relative change of weights by one rounding, and number of such changes that are tried.
_ROUNDING, _TRIES = 1e-7, 4


@dataclass(frozen=True)
class Outcome:
    """Outcome of a sample.

    Attributes:
        kind: "equal", "differs", "refused: topic", "failed: class", or why it was not compared.
        detail: start of a message, or the largest difference.
    """

    kind: str
    detail: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether eager PyTorch ran the sample, so that it counts."""
        return not self.kind.startswith("not compared")


class _Trained(torch.nn.Module):
    """Adds a loss to a model: the mean square of its first result, and losses that it returns."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = self.model(*args, **kwargs)
        found = [t for t in tensors_in(result) if t.is_floating_point() and t.requires_grad]
        if not found:
            raise _NothingTrainedError("No result needs a gradient.")
        own = [value.sum() for value in found[1:] if value.numel() == 1]
        loss = sum(own, found[0].float().square().mean())
        return result, poptorch.identity_loss(loss, "mean")


class _NothingTrainedError(Exception):
    pass


def inference(sample: Sample, set_options: Callable[[poptorch.Options], None]) -> Outcome:
    """Compares one call without gradients."""
    with torch.no_grad():
        try:
            # Each call gets its own arguments, because a call may change a cache among them.
            expected = _run(sample.module, sample)
            again = _run(sample.module, sample, seed=1)
        except Exception as error:
            return Outcome("not compared: PyTorch does not run it", _first_line(error))
    if _difference(expected, again):
        return Outcome("not compared: random in PyTorch")
    try:
        model = poptorch.inferenceModel(copy.deepcopy(sample.module), _options(set_options))
        found = _run(model, sample)
    except Exception as error:
        return _failure(error)
    return _compared(
        sample.module,
        expected,
        found,
        lambda module: _run(module, sample),
        is_training=False,
    )


def training(sample: Sample, set_options: Callable[[poptorch.Options], None]) -> Outcome:
    """Compares losses, results and weights of two steps of SGD."""
    plain, again, other = (copy.deepcopy(sample.module).train() for _ in range(3))
    try:
        plain_results = _plain_steps(plain, sample)
        if _difference(plain_results, _plain_steps(again, sample, seed=1)):
            return Outcome("not compared: random in PyTorch")
    except Exception as error:
        return Outcome("not compared: PyTorch does not train it", _first_line(error))
    try:
        wrapped = _Trained(other)
        optimizer = poptorch.optim.SGD(
            wrapped.parameters(), lr=_LEARNING_RATE, use_combined_accum=False
        )
        model = poptorch.trainingModel(wrapped, _options(set_options), optimizer)
        results = [_run(model, sample)[1] for _ in range(_STEPS)]
        weights = [value.detach().clone() for value in wrapped.parameters()]
    except Exception as error:
        return _failure(error)
    return _compared(
        sample.module,
        plain_results,
        [*results, *weights],
        lambda module: _plain_steps(module.train(), sample),
        is_training=True,
    )


def _plain_steps(module: torch.nn.Module, sample: Sample, seed: int = 0) -> list[Any]:
    model = _Trained(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    results = []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        _, loss = _run(model, sample, seed)
        loss.backward()
        optimizer.step()
        results.append(loss.detach())
    return [*results, *(value.detach() for value in model.parameters())]


def _run(model: Any, sample: Sample, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    args, kwargs = copy.deepcopy((sample.args, sample.kwargs))
    return model(*args, **kwargs)


def _options(set_options: Callable[[poptorch.Options], None]) -> poptorch.Options:
    options = poptorch.Options().showCompilationProgressBar(False).randomSeed(0)
    set_options(options)
    return options


def _nearly(module: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Returns a copy of a module whose weights are moved by about one rounding of 32 bits."""
    generator = torch.Generator().manual_seed(seed)
    moved = copy.deepcopy(module)
    with torch.no_grad():
        for value in filter(torch.is_floating_point, moved.parameters()):
            value.mul_(1 + _ROUNDING * torch.randn(value.shape, generator=generator))
    return moved


def _compared(
    module: torch.nn.Module,
    expected: Any,
    found: Any,
    run: Callable[[torch.nn.Module], Any],
    *,
    is_training: bool,
) -> Outcome:
    """Compares results, and PyTorch's own with nearly the same weights if they differ.

    A model is unstable if rounding alone moves each result at least half as far, or the first loss
    of a training. For example, batch norm divides by the deviation of two values, or a router finds
    a tie.

    Args:
        module: the sample's module.
        expected: results of PyTorch.
        found: results of the emulator.
        run: function that returns PyTorch's results for a copy of the module.
        is_training: whether the first result is the loss of the first step.
    """
    fault = _difference(expected, found)
    if not fault:
        return Outcome("equal")
    ours = _distances(expected, found)
    tries = [_distances(expected, run(_nearly(module, seed))) for seed in range(_TRIES)]
    moved = [max(each) for each in zip(*tries, strict=True)]
    near = [one <= max(2 * other, _RELATIVE) for one, other in zip(ours, moved, strict=False)]
    is_lost = is_training and moved[0] > _RELATIVE and near[0]
    is_unstable = len(ours) == len(moved) and (is_lost or all(near))
    kind = "not compared: unstable in PyTorch" if is_unstable else "differs"
    text = f"{fault}; relative {max(ours):.2g}, in PyTorch after a rounding {max(moved):.2g}"
    return Outcome(kind, text)


def _distances(expected: Any, found: Any) -> list[float]:
    """Returns the largest difference of each tensor, in relation to its largest value."""
    left, right = ([_dense(value) for value in tensors_in(each)] for each in (expected, found))
    if [value.shape for value in left] != [value.shape for value in right]:
        return [float("inf")]
    return [
        float((one - other).abs().max()) / max(float(one.abs().max()), _SMALL)
        for one, other in zip(left, right, strict=True)
        if one.numel()
    ]


def _difference(expected: Any, found: Any) -> str:
    """Returns the first difference of two results as text, or ""."""
    left, right = tensors_in(expected), tensors_in(found)
    if len(left) != len(right):
        return f"{len(left)} tensors in PyTorch, {len(right)} here"
    for index, (one, other) in enumerate(zip(left, right, strict=True)):
        one, other = (_dense(value) for value in (one, other))
        if one.shape != other.shape:
            return f"tensor {index} has the shape {list(one.shape)}, here {list(other.shape)}"
        if one.numel() == 0:
            continue
        scale = float(one.abs().nan_to_num(0, 0, 0).max())
        if not torch.allclose(
            one, other, rtol=_RELATIVE, atol=_ABSOLUTE * max(scale, _SMALL), equal_nan=True
        ):
            largest = float((one - other).abs().nan_to_num().max())
            return f"tensor {index} differs by {largest:.3g}, its largest value is {scale:.3g}"
    return ""


def _dense(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    if value.layout is not torch.strided:
        value = value.to_dense()
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _failure(error: Exception) -> Outcome:
    """Returns the outcome of an error, which may be a refusal with a message or another failure."""
    if isinstance(error, _NothingTrainedError):
        return Outcome("not compared: nothing is trained")
    text = re.sub(r"^In \S+: '\w+': ", "", str(error))
    if not isinstance(error, poptorch.Error):
        return Outcome(f"failed: {type(error).__name__}", _first_line(error))
    topic = re.findall(r"troubleshooting: ([\w-]+)", text)
    subject = topic[-1] if topic else " ".join(text.split()[:4])
    return Outcome(f"refused: {subject}", _first_line(error))


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
