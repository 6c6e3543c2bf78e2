"""All schedules for one model, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from poptorch_emu.compile.rescheduling import Rescheduling
from poptorch_emu.config import PipelineOrder, StrategyConfig, StrategyKind, TableConfig
from poptorch_emu.emulator import schedules
from poptorch_emu.emulator.estimates import captured, chosen_system
from poptorch_emu.errors import Error, make_error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.module_loading import without_garbage_collection
from poptorch_emu.plan.time.comparison import Candidate, Comparison
from poptorch_emu.report.comparison_report import ComparisonReport
from poptorch_emu.schedule.tables.named import num_stages_on


def compare_schedules(
    model: PoplarExecutor,
    *inputs: Any,
    num_ipus: int | None = None,
    own: Mapping[str, TableConfig] | None = None,
    system: str | None = None,
    **keywords: Any,
) -> ComparisonReport:
    """Returns what each schedule would cost a model: bubble, throughput and memory (modelled).

    Nothing runs. Where a schedule has as many stages as the user named, these stay as they are.
    Otherwise the model is cut anew, between blocks or modules, so that the slowest stage is the
    fastest; `emulator.autoplace` with as many IPUs as there are stages cuts it so for a run.

    Args:
        model: compiled or not.
        inputs: as for a call; of a compiled model they may be left out.
        num_ipus: of a replica; by default as many as the model has.
        own: further schedules by name, as `emulator.schedules.from_table` returns them.
        system: such as "bow-pod16"; by default the virtual system.
        keywords: inputs of a call that are given by name.

    Raises:
        Error: the model has one IPU and `num_ipus` is not given, or it cannot be captured.

    Example:
        >>> class Model(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
        ...
        ...     def forward(self, x):
        ...         for index, layer in enumerate(self.layers):
        ...             poptorch.Block.start(f"layer {index}", ipu_id=index // 2)
        ...             x = torch.relu(layer(x))
        ...         return x, poptorch.identity_loss(x, "mean")

        >>> options = poptorch.Options()
        >>> _ = options.Training.gradientAccumulation(8)
        >>> training = poptorch.trainingModel(Model(), options)
        >>> print(emulator.compare_schedules(training, torch.ones(512, 64)))
        schedule ...
    """
    # Plans of a dozen schedules are a lot of objects, and next to no garbage.
    with without_garbage_collection():
        return _compared(model, (inputs, keywords), num_ipus, own or {}, system)


def _compared(
    model: PoplarExecutor,
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
    num_ipus: int | None,
    own: Mapping[str, TableConfig],
    system: str | None,
) -> ComparisonReport:
    request, inventory = captured(model, *given, ignores_schedule=True)
    count = len(inventory.placed.ipu_ids) if num_ipus is None else num_ipus
    if count < 2:
        raise make_error(
            f"A schedule of {count} IPU has nothing to compare. Give num_ipus=, or put blocks of "
            "the model on several IPUs."
        )
    machine = chosen_system(system)
    work = Rescheduling(request, inventory, machine, count)
    candidates = [
        _candidate(work, name, strategy)
        for name, strategy in _strategies(inventory.config.strategy, own)
    ]
    micro_batches = inventory.config.num_micro_batches
    return ComparisonReport.of(
        Comparison(tuple(sorted(candidates, key=_order)), count, micro_batches, machine.name)
    )


def _strategies(
    present: StrategyConfig, own: Mapping[str, TableConfig]
) -> Iterable[tuple[str, StrategyConfig]]:
    """Yields all schedules: PopTorch's, those that have a name, and the user's."""
    pipelined = replace(present, kind=StrategyKind.PIPELINED, table=None)
    for order in PipelineOrder:
        yield order.value, replace(pipelined, order=order)
    named = {name: make() for name, make in schedules.NAMED.items()}
    for name, table in {**named, **own}.items():
        yield name, replace(pipelined, table=table)


def _candidate(work: Rescheduling, name: str, strategy: StrategyConfig) -> Candidate:
    try:
        return Candidate.of(name, *work.plan(strategy))
    except (Error, ValueError) as fault:
        table = strategy.table
        num_stages = work.num_ipus if table is None else num_stages_on(table, work.num_ipus)
        text = fault.message if isinstance(fault, Error) else str(fault)
        return Candidate(name, num_stages, problem=str(text))


def _order(candidate: Candidate) -> tuple[bool, bool, float]:
    """Returns what puts those first that fit, and of these the fastest."""
    is_out = bool(candidate.problem)
    return is_out, candidate.fits == "no", -(candidate.throughput or 0.0)
