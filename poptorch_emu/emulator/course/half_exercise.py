"""Exercise 7: train a model in float16 that trains well in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from poptorch_emu.emulator.course.exercise import Exercise, Findings
from poptorch_emu.emulator.course.layers import Sensor
from poptorch_emu.executor.executor import PoplarExecutor

STEPS, ROWS, LEARNING_RATE = 60, 256, 5e4
# Highest accepted loss after training, as a share of the first loss; float32 reaches a tenth.
MOST_LEFT = 0.25
_WIDTH = 64
_LARGEST = torch.finfo(torch.float16).max
_SMALLEST = torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps


def _assess(wrap: Callable[[Sensor], PoplarExecutor]) -> Findings:
    training = wrap(_sensor())
    if not isinstance(training, PoplarExecutor):
        return Findings((
            f"The function returns a value of type {type(training).__name__}, but it should return "
            "what poptorch.trainingModel returns.",
        ))  # fmt: skip
    dtypes = {parameter.dtype for parameter in training.model.parameters()}
    if dtypes != {torch.float16}:
        training.destroy()
        names = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        return Findings((f"The weights are {names}, but they should be float16: model.half().",))
    losses = [float(training(x.half(), target.half())) for x, target in _batches()]
    training.destroy()
    if not math.isfinite(losses[-1]):
        return Findings((
            "The loss is not finite: somewhere float16 has no number that is large enough. A loss "
            f"scale that is too large does that; the largest number is {_LARGEST:,.0f}.",
        ))  # fmt: skip
    left = losses[-1] / losses[0]
    facts = (f"After {STEPS} steps the loss is {left:.1%} of the first one.",)
    if left > MOST_LEFT:
        return Findings(
            (
                f"The loss should fall below {MOST_LEFT:.0%} of the first one, as it does in "
                f"float32 with the learning rate {LEARNING_RATE:.0e}. Gradients below "
                f"{_SMALLEST:.0e} become zero in float16, and then the weights stay. What makes "
                "gradients larger, and updates not?",
            ),
            facts,
        )
    return Findings((), facts)


def _sensor() -> Sensor:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return Sensor(_WIDTH)


def _batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields the same inputs and targets at each call."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(_WIDTH, generator=generator) / math.sqrt(_WIDTH)
    for _ in range(STEPS):
        x = torch.randn(ROWS, _WIDTH, generator=generator)
        yield x, torch.tanh(x @ weights)[:, None]


EXERCISE = Exercise(
    "half precision",
    "a function that takes a course.Sensor and returns what poptorch.trainingModel returns",
    (Callable,),  # type: ignore[arg-type]
    _assess,
)
