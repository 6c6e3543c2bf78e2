"""Report of the precision that half precision loses in a window of a model."""

from __future__ import annotations

from typing import Any

from poptorch_emu.emulator.given_values import wrapped
from poptorch_emu.emulator.observed_runs import Asked, observed_run
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.numbers.magnitudes import HALF_TYPES
from poptorch_emu.numbers.numerics import Numerics, UpdateNumbers, found_numerics
from poptorch_emu.numbers.numerics_walk import NumericsWalk
from poptorch_emu.numbers.observed_window import ObservedWindow
from poptorch_emu.numbers.updates import difficulty, lost_updates
from poptorch_emu.report.numerics_report import NumericsReport


def numerics(model: PoplarExecutor, *inputs: Any, **keywords: Any) -> NumericsReport:
    """Returns the precision that half precision loses in a window, by operation (exact).

    One window (forward, backward, update) runs, and in parallel a reference in float64 with the
    same weights and random numbers. For each operation and direction the report has the largest and
    the smallest magnitude, the shares that overflow and underflow (become zero, or lose digits),
    and the relative error; for gradients it also has the losses under each loss scale. It
    suggests a loss scale, operations to keep in float32, and whether weights need stochastic
    rounding. `plot()` draws histograms by exponent. For a float32 model the report says what
    float16 would lose.

    The model, its weights and its device do not change. `docs/guide/half_precision.md` defines
    the shares and errors.

    Args:
        model: wrapped model from `trainingModel` or `inferenceModel`.
        inputs: arguments of a call; may be left out for a compiled model.
        keywords: inputs of a call by name.

    Raises:
        Error: the model cannot be captured.
        TypeError: the model is not wrapped.

    Example:
        >>> inference = poptorch.inferenceModel(torch.nn.Linear(3, 1).half())
        >>> print(emulator.numerics(inference, torch.ones(2, 3).half()))
        float16 is compared with a float64 reference: ...
        ...
    """
    model = wrapped(model)
    with observed_run(Asked(model, inputs, keywords)) as observed:
        return NumericsReport.of(_numerics(observed))


def _numerics(observed: ObservedWindow) -> Numerics:
    request, run, graph = observed.request, observed.run, observed.graph
    weights = observed.start.weights
    reason = difficulty(request)
    halves = [name for name in request.parameters if weights[name].dtype in HALF_TYPES]
    is_told = request.optimizer is not None and not reason
    scaling = 1.0 if request.optimizer is None else request.optimizer.loss_scaling.value
    count = len(graph.numbers) * len(run.positions)
    with observed.progress("Float64 reference", count) as on_value:
        walk = NumericsWalk(graph, run, scaling, halves if is_told else [], on_value)
    updates = [
        UpdateNumbers(name, lost)
        for name, lost in lost_updates(
            request, observed.start, walk.gradients, len(run.positions)
        ).items()
    ]
    notes = []
    if halves and reason:
        notes.append(
            f"It is not known which updates are too small for half precision, because {reason}."
        )
    return found_numerics(
        walk.operations(), updates, scaling,
        rounds_stochastically=request.config.rounds_stochastically, notes=notes,
    )  # fmt: skip
