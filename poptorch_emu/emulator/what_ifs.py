"""What a model would do with other settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from poptorch_emu.compile.compiler import Request
from poptorch_emu.compile.planning import adapt_inventory
from poptorch_emu.compile.timing import timed
from poptorch_emu.config import CompileConfig, Recomputation
from poptorch_emu.emulator.estimates import captured, chosen_system
from poptorch_emu.errors import Error, make_error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.machine.ipu import Ipu
from poptorch_emu.machine.system import System
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.memory.memory_plan import MemoryPlan
from poptorch_emu.plan.operations.operation_cost import OperationCosts
from poptorch_emu.plan.tiles.tile_contents import plan_tiles
from poptorch_emu.plan.time.durations import Durations
from poptorch_emu.plan.time.sweep import Point, Sweep
from poptorch_emu.report.bottleneck_text import bottleneck_text
from poptorch_emu.report.what_if_report import SweepReport

_SETTINGS = ("accumulation", "replicas", "micro_batch", "proportion", "recomputation", "system")
# Those that are given by place, and by name.
_Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
# From the best to the worst.
_VERDICTS = ("yes", "close", "no")


def what_if(
    model: PoplarExecutor,
    *inputs: Any,
    sweep: Mapping[str, Sequence[Any]],
    system: str | None = None,
    **keywords: Any,
) -> SweepReport:
    """Returns how fast a model would be with each choice of some settings (modelled).

    Args:
        model: compiled or not.
        inputs: as for a call, for the settings that the model has.
        sweep: values by setting: "accumulation", "replicas", "micro_batch" (rows), "proportion"
            (of each IPU's memory, for products), "recomputation" ("none", "standard",
            "norm_only", "pipeline" or "all") and "system".
        system: where the sweep has none.
        keywords: inputs of a call that are given by name.

    Raises:
        Error: there is no such setting, or what it is given is no sequence of its values.

    Example:
        >>> model = poptorch.inferenceModel(torch.nn.Linear(64, 64))
        >>> sweep = {"micro_batch": [4, 32], "replicas": [1, 4]}
        >>> print(emulator.what_if(model, torch.ones(4, 64), sweep=sweep))
        micro_batch  replicas  ...rows/s  fits  limited by
                  4         1  ...  yes         [1]
        ...
        [1] IPU 0: ...
    """
    choices = _checked(sweep)
    planner = _Planner(model, (inputs, keywords), system)
    values_of_points = itertools.product(*choices.values())
    points = (planner.point(dict(zip(choices, each, strict=True))) for each in values_of_points)
    return SweepReport.of(Sweep(tuple(points)))


def _checked(sweep: Mapping[str, Iterable[Any]]) -> dict[str, tuple[Any, ...]]:
    """Returns the values to try by setting.

    Raises:
        Error: as for `what_if`.
    """
    if not isinstance(sweep, Mapping):
        raise make_error(f"sweep has values by setting, as {{'replicas': [1, 4]}}, not {sweep!r}.")
    for name, values in sweep.items():
        if name not in _SETTINGS:
            raise make_error(
                f"what_if knows no setting {name!r}. Choose some of {', '.join(_SETTINGS)}."
                f"{did_you_mean(name, _SETTINGS)}"
            )
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise make_error(
                f"The sweep of {name!r} is {values!r}, but it lists values to try: write "
                f"{{{name!r}: [{values!r}]}}."
            )
    checked = {name: tuple(values) for name, values in sweep.items()}
    for name in checked.get("recomputation", ()):
        _recomputation(name)
    return checked


@dataclass
class _Captured:
    """A model that was traced, and what was found out about it for one choice or another."""

    request: Request
    inventory: Inventory
    inventories: dict[CompileConfig, Inventory] = field(default_factory=dict)
    memories: dict[tuple[Ipu, CompileConfig], tuple[MemoryPlan, str]] = field(default_factory=dict)
    costs: dict[tuple[Ipu, CompileConfig], OperationCosts] = field(default_factory=dict)


class _Planner:
    def __init__(self, model: PoplarExecutor, inputs: _Inputs, system: str | None) -> None:
        self._model = model
        self._inputs = inputs
        self._system = system
        self._captured: dict[int | None, _Captured] = {}

    def point(self, settings: Mapping[str, Any]) -> Point:
        """Returns what one choice of settings gives."""
        chosen = tuple(settings.items())
        try:
            return self._point(settings, chosen)
        except Error as error:
            return Point(chosen, None, 0.0, "", str(error.message))

    def _point(self, settings: Mapping[str, Any], chosen: tuple[tuple[str, object], ...]) -> Point:
        system = chosen_system(settings.get("system", self._system))
        case = self._case(settings.get("micro_batch"))
        config = _changed(case.request.config, settings, case.inventory)
        inventory = _inventory(case, config)
        memory, fits = _memory(case, inventory, system)
        key = (_without_clock(system.chip), _of_operations(config))
        durations = Durations(inventory, memory, system, known_costs=case.costs.get(key))
        case.costs[key] = durations.costs
        plan = timed(case.request, durations)
        limit = bottleneck_text(plan.limited_by)
        return Point(chosen, plan.throughput, plan.step_seconds, fits, limit)

    def _case(self, rows: int | None) -> _Captured:
        if rows not in self._captured:
            inputs = self._inputs if rows is None else self._with_rows(rows)
            self._captured[rows] = _Captured(*captured(self._model, *inputs))
        return self._captured[rows]

    def _with_rows(self, rows: int) -> _Inputs:
        """Returns inputs for micro-batches of so many rows."""
        request = self._case(None).request

        def resized(value: torch.Tensor) -> torch.Tensor:
            shape = (rows * request.config.batch_factor, *value.shape[1:]) if value.dim() else ()
            return torch.empty(shape, dtype=value.dtype, device="meta")

        positional, named = request.arguments(resized)
        return tuple(positional), named


def _changed(
    config: CompileConfig, settings: Mapping[str, Any], inventory: Inventory
) -> CompileConfig:
    changes: dict[str, Any] = {}
    if "accumulation" in settings:
        changes["gradient_accumulation"] = settings["accumulation"]
    if "replicas" in settings:
        changes["replication_factor"] = settings["replicas"]
    if "recomputation" in settings:
        changes["recomputation"] = _recomputation(settings["recomputation"])
    if "proportion" in settings:
        proportions = tuple((ipu, settings["proportion"]) for ipu in inventory.placed.ipu_ids)
        changes["machine"] = replace(config.machine, available_memory_proportion=proportions)
    return replace(config, **changes)


def _recomputation(name: str) -> Recomputation:
    names = [mode.name.lower() for mode in Recomputation]
    if name not in names:
        raise make_error(
            f"There is no recomputation {name!r}. Choose one of {', '.join(names)}."
            f"{did_you_mean(name, names)}"
        )
    return Recomputation[name.upper()]


def _of_operations(config: CompileConfig) -> CompileConfig:
    """Returns a configuration with all that the costs of operations do not depend on left out."""
    return replace(config, gradient_accumulation=1, replication_factor=1, recomputation=None)


def _of_memory(config: CompileConfig) -> CompileConfig:
    """Returns a configuration in which only whether gradients are accumulated is left of how often.

    Nor does what a pipeline holds depend on more micro-batches than it takes to fill.
    """
    return replace(config, gradient_accumulation=min(config.gradient_accumulation, 64))


def _inventory(case: _Captured, config: CompileConfig) -> Inventory:
    """Returns what the IPUs run with other settings, made of that with the nearest ones."""
    key = _of_memory(config)
    if key not in case.inventories:
        bases = (*case.inventories.values(), case.inventory)
        base = min(bases, key=lambda other: _distance(other.config, config))
        optimizer, parameters = case.request.optimizer, case.request.parameters
        case.inventories[key] = adapt_inventory(base, config, optimizer, parameters)
    return replace(case.inventories[key], config=config)


def _distance(known: CompileConfig, asked: CompileConfig) -> int:
    """Returns how much of what code and update depend on differs."""
    is_replicated = known.replication_factor > 1, asked.replication_factor > 1
    return 2 * (known.recomputation is not asked.recomputation) + len(set(is_replicated)) - 1


def _memory(case: _Captured, inventory: Inventory, system: System) -> tuple[MemoryPlan, str]:
    """Returns the plan of memory, and whether the fullest tile can hold what it must."""
    config, chip = inventory.config, _without_clock(system.chip)
    key = chip, _of_memory(config)
    if key not in case.memories:
        machine = replace(config.machine, version=system.version)
        inventory = replace(inventory, config=replace(config, machine=machine))
        memory = plan_memory(inventory)
        tiles = plan_tiles(inventory, memory)
        fits = max(map(tiles.verdict, tiles.ipus), key=_VERDICTS.index)
        case.memories[key] = memory, fits
    return case.memories[key]


def _without_clock(chip: Ipu) -> Ipu:
    """Returns a chip that is equal where memory and cycles are."""
    return replace(chip, name="", clock_hz=0.0)
