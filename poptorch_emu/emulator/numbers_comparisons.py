"""Comparisons that show where the numbers of two runs of a model begin to differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from poptorch_emu.compile.compiler import Request
from poptorch_emu.emulator.given_values import path_and_inputs, wrapped
from poptorch_emu.emulator.observed_runs import Asked, observed_run, write_run
from poptorch_emu.errors import Error, make_error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.export.optimizer import torch_optimizer_of
from poptorch_emu.ir.control import FOR_LOOP
from poptorch_emu.ir.exchange import is_collective
from poptorch_emu.ir.graph import record_of
from poptorch_emu.numbers import nonfinite
from poptorch_emu.numbers.alignment import aligned
from poptorch_emu.numbers.eager_run import EagerRequest, Step, run_eager
from poptorch_emu.numbers.engine_run import Start, written_buffers
from poptorch_emu.numbers.kept_run import KeptRun
from poptorch_emu.numbers.module_outputs import ModuleOutputs
from poptorch_emu.numbers.observed_window import ObservedWindow
from poptorch_emu.numbers.pair import Pair
from poptorch_emu.numbers.run import Position, Run, Sink
from poptorch_emu.numbers.run_file import RunWriter, opened
from poptorch_emu.numbers.updates import UpdateJudge, note_of
from poptorch_emu.numbers.walk import Walk
from poptorch_emu.options import Options
from poptorch_emu.report.nonfinite_report import NonfiniteReport
from poptorch_emu.report.numbers_report import NumbersReport
from poptorch_emu.report.written_file import WrittenFile
from poptorch_emu.untrusted.files import replacing

Against = Any
_SHADOWS = (torch.float32, torch.float64)


def record(
    model: PoplarExecutor, *inputs: Any, path: str | Path | None = None, **keywords: Any
) -> Path:
    """Runs one window and writes the numbers of all its operations to a file (exact).

    The model, its weights and its device do not change. `emulator.compare` compares a run of
    another version of the package, or on another machine, with the file.

    Args:
        model: wrapped model from `trainingModel` or `inferenceModel`.
        inputs: arguments of a call; may be left out for a compiled model.
        path: path of the file, a zip archive; an existing file is replaced when the new one is
            complete. It may also be passed before the inputs: `record(model, path, *inputs)`.
        keywords: inputs of a call by name.

    Returns:
        The path.

    Raises:
        Error: the model cannot be captured.
        OSError: the file cannot be written.
        TypeError: the model is not wrapped, or no path is given.

    Example:
        >>> inference = poptorch.inferenceModel(torch.nn.Linear(3, 1))
        >>> path = emulator.record(inference, "golden.run", torch.ones(2, 3))
        >>> emulator.compare(inference, torch.ones(2, 3), against=path).verdict
        <Verdict.EQUAL: 0>
    """
    model = wrapped(model)
    written, inputs = path_and_inputs("record", "path", path, inputs)
    asked = Asked(model, inputs, keywords)
    request = asked.window()
    with replacing(written) as unfinished, RunWriter(unfinished) as writer:
        write_run(model, request, asked.start(request.config.random_seed or 0), writer)
    return WrittenFile(written)


def compare(
    model: PoplarExecutor, *inputs: Any, against: Against = None, **keywords: Any
) -> NumbersReport:
    """Returns where a model's numbers first differ from those of another run (exact).

    One window (forward, backward, update) runs twice, and both runs are compared operation by
    operation. Each value is compared with the exact result of its operation on the run's own
    inputs, so that the report names the operation at which a difference begins.
    `docs/guide/comparing_runs.md` defines the verdicts. The model, its weights and its device do
    not change.

    Args:
        model: wrapped model from `trainingModel` or `inferenceModel`.
        inputs: arguments of a call; may be left out for a compiled model.
        against: the other run, by default plain PyTorch on the CPU. `torch.float64` or
            `torch.float32` for plain PyTorch in that dtype; `Options` for the same model with
            other options; another wrapped model; the path of a file from `emulator.record`; or
            a dictionary from paths of modules to their outputs, as forward hooks provide them.
        keywords: inputs of a call by name.

    Raises:
        Error: the model cannot be captured, a module of the dictionary is unknown, or the file is
            not a recorded run.
        OSError: the file cannot be read.
        TypeError: the model is not wrapped, or `against` has another type.

    Example:
        >>> inference = poptorch.inferenceModel(torch.nn.Linear(3, 1))
        >>> print(emulator.compare(inference, torch.ones(2, 3)))
        equal bits: ...
        ...
    """
    model = wrapped(model)
    asked = Asked(model, inputs, keywords)
    with observed_run(asked) as observed, ExitStack() as stack:
        theirs, notes = _other(stack, asked, observed, against)
        notes = [*notes, *filter(None, [note_of(observed.request)])]
        is_engine = isinstance(against, (str, Path, Options, PoplarExecutor))
        return NumbersReport.of(_walked(observed, theirs, is_engine=is_engine).result(notes))


def first_nonfinite(model: PoplarExecutor, *inputs: Any, **keywords: Any) -> NonfiniteReport:
    """Returns the first operation of a window whose result is NaN or infinite (exact).

    An intended infinity, as in a mask, counts only if a final result is not finite. The returned
    report is true if an operation was found. The model, its weights and its device do not change.

    Args:
        model: wrapped model from `trainingModel` or `inferenceModel`.
        inputs: arguments of a call; may be left out for a compiled model.
        keywords: inputs of a call by name.

    Raises:
        Error: the model cannot be captured.
        TypeError: the model is not wrapped.

    Example:
        >>> class Logarithm(torch.nn.Module):
        ...     def forward(self, x):
        ...         return torch.log(x) + 1
        >>> inference = poptorch.inferenceModel(Logarithm())
        >>> emulator.first_nonfinite(inference, torch.tensor([1.0, -1.0])).first.value.kind
        'log'
    """
    model = wrapped(model)
    with observed_run(Asked(model, inputs, keywords)) as observed:
        return NonfiniteReport.of(nonfinite.first_nonfinite(observed.graph, observed.run))


def _walked(observed: ObservedWindow, theirs: Run, *, is_engine: bool) -> Walk:
    request, ours = observed.request, observed.run
    is_certain = isinstance(theirs, ModuleOutputs)
    if isinstance(theirs, ModuleOutputs):
        matched = theirs.matched
    else:
        matched = aligned(ours.values, theirs.values)
    scaling = 1.0 if request.optimizer is None else request.optimizer.loss_scaling.value
    graph = observed.graph
    pair = Pair(graph.graph, ours, theirs, graph.numbers, matched, scaling, is_certain)
    with observed.progress("Comparison", len(graph.numbers) * len(ours.positions)) as on_value:
        walk = Walk(pair, on_value)
        judge = UpdateJudge(request, observed.start, ours, theirs)
        walk.run(judge, is_update_complete=is_engine)
        return walk


def _other(
    stack: ExitStack, asked: Asked, observed: ObservedWindow, against: Against
) -> tuple[Run, list[str]]:
    """Returns the run to compare with, and notes about it for the report.

    Args:
        stack: exit stack that closes files.
        asked: model and inputs of our run.
        observed: window of our run.
        against: the argument of `compare`.
    """
    if isinstance(against, (str, Path)):
        return stack.enter_context(opened(Path(against))), []
    if isinstance(against, Mapping):
        return ModuleOutputs(against, observed.graph, observed.run), []
    seed, notes = observed.start.seed, list[str]()
    if isinstance(against, Options):
        run = stack.enter_context(KeptRun("other options"))
        write_run(asked.model, asked.window(against), observed.start, run)
    elif isinstance(against, PoplarExecutor):
        run, other = stack.enter_context(KeptRun("the other model")), replace(asked, model=against)
        write_run(against, other.window(), other.start(seed), run)
    elif against is None or against in _SHADOWS:
        title = "plain PyTorch" if against is None else f"plain PyTorch in {against}"
        run = stack.enter_context(KeptRun(title))
        notes = _run_eager(observed, against, run)
    else:
        raise TypeError(
            f"against is of type {type(against).__name__}; give None, torch.float32, "
            "torch.float64, Options, a wrapped model, the path of a recorded run, or a "
            "dictionary of modules' outputs."
        )
    return run, notes


def _run_eager(observed: ObservedWindow, float_type: torch.dtype | None, sink: Sink) -> list[str]:
    """Runs the window in plain PyTorch; returns notes about the parts that are not compared.

    Raises:
        Error: the model exchanges values between replicas.
    """
    for node in filter(is_collective, observed.graph.graph.operations):
        raise make_error(
            f"The replicas exchange values at {record_of(node).source}, which plain PyTorch "
            "cannot compute in one process. Compare the model with itself under other options, "
            "with another wrapped model or with a recorded run (against=)."
        )
    step, notes = None, list[str]()
    if float_type is None:
        step, notes = _step(observed.request, observed.start)
    asked = EagerRequest(
        observed.request,
        observed.start,
        lambda position: _drawn(observed.run, position),
        written_buffers(observed.graph.graph),
        step,
        float_type,
    )
    run_eager(asked, sink, observed.progress)
    if any(node.target is FOR_LOOP for node in observed.graph.graph.operations):
        notes.append(
            "Outside a wrapped model poptorch.for_loop runs its body once, as in PopTorch, so "
            "plain PyTorch computes other values after a loop."
        )
    return notes


def _drawn(run: Run, position: Position) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the random values at a position with their modules, in the order of forward."""
    for number, value in enumerate(run.values):
        tensor = run.read(number, position) if value.is_random else None
        if tensor is not None:
            yield value.module, tensor


def _step(request: Request, start: Start) -> tuple[Step | None, list[str]]:
    """Returns a function that updates a PyTorch module as the model's optimiser does, if any."""
    config = request.optimizer
    if config is None:
        return None, []
    parameters = {name: torch.nn.Parameter(start.weights[name]) for name in request.parameters}
    try:
        optimizer = torch_optimizer_of(config.unscaled, parameters, start.states)
    except Error as reason:
        return None, [f"The update is not compared: {reason.message}"]

    def step(module: torch.nn.Module, gradients: Mapping[str, torch.Tensor]) -> None:
        # The update runs in float32, as on the device, which has master copies of float16 weights.
        own = dict(module.named_parameters())
        wide = {name: torch.nn.Parameter(own[name].detach().float()) for name in own}
        for name, gradient in gradients.items():
            wide[name].grad = gradient.float()
        optimizer.over(wide).step()
        with torch.no_grad():
            for name in gradients:
                own[name].copy_(wide[name])

    return step, []
