"""Comparison of all schedules for one model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poptorch_emu.compile.planner import Planner
from poptorch_emu.config import PipelineOrder, TableConfig
from poptorch_emu.emulator import schedules
from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.errors import Error, make_error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.module_loading import without_garbage_collection
from poptorch_emu.report.comparison_report import Candidate, ComparisonReport
from poptorch_emu.schedule.tables.named import num_stages_on


def compare_schedules(
    model: PoplarExecutor,
    *inputs: Any,
    num_ipus: int | None = None,
    own: Mapping[str, TableConfig] | None = None,
    **keywords: Any,
) -> ComparisonReport:
    """Returns the bubble, throughput and memory of a model under each schedule (modelled).

    Nothing runs. If a schedule has as many stages as the user named, the stages stay unchanged.
    Otherwise the model is cut between blocks or modules so that the slowest stage is as fast as
    possible; `emulator.autoplace` with the same number of IPUs cuts the model in this way.

    Args:
        model: wrapped model, compiled or not.
        inputs: arguments of a call; may be left out for a compiled model.
        num_ipus: number of IPUs of a replica; by default the model's.
        own: further schedules by name, as `emulator.schedules.from_table` returns them.
        keywords: `system` and `io` as for `estimate`, and inputs by name.

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
    # The collector would only cost time: plans of a dozen schedules are many objects, and almost
    # none of them is garbage.
    with without_garbage_collection():
        planner = planner_of(model, inputs, keywords, ignores_schedule=True)
        return _compared(planner, num_ipus, own or {})


def _compared(
    planner: Planner, num_ipus: int | None, own: Mapping[str, TableConfig]
) -> ComparisonReport:
    config = planner.inventory.config
    count = len(planner.inventory.placed.ipu_ids) if num_ipus is None else num_ipus
    if count < 2:
        raise make_error(
            f"A schedule of {count} IPU has nothing to compare. Give num_ipus=, or put blocks of "
            "the model on several IPUs."
        )
    named = {name: make() for name, make in schedules.NAMED.items()}
    choices = {order.value: order.value for order in PipelineOrder} | named | dict(own)
    candidates = [_candidate(planner, name, choice, count) for name, choice in choices.items()]
    in_order = tuple(sorted(candidates, key=_order))
    return ComparisonReport(in_order, count, config.num_micro_batches, planner.system.name)


def _candidate(planner: Planner, name: str, choice: str | TableConfig, num_ipus: int) -> Candidate:
    try:
        planned = planner.plan({"num_ipus": num_ipus, "schedule": choice})
        return Candidate.of(name, planned.inventory.schedule, planned.time, planned.tiles)
    except Error as fault:
        num_stages = num_ipus if isinstance(choice, str) else num_stages_on(choice, num_ipus)
        return Candidate(name, num_stages, problem=str(fault.message))


def _order(candidate: Candidate) -> tuple[int, float]:
    """Returns a sort key: schedules that fit come first, then those that may fit, by speed."""
    return ("yes", "close", "no", "").index(candidate.fits), -(candidate.throughput or 0.0)
