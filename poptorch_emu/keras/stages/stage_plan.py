"""The stages of a model as they run: the calls in each stage, and its IPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.stages.inlined_graph import StagedCall, inlined, makers
from poptorch_emu.keras.stages.model_contents import Contents, contents_of
from poptorch_emu.keras.stages.stage_assignment import has_stages, no_graph, stages_of
from poptorch_emu.keras.stages.stage_marks import any_stages


@dataclass(frozen=True)
class StagePlan:
    """The calls of a model's graph by stage.

    Attributes:
        calls: calls of each stage, in order.
        ipus: IPU of each stage. IPUs are numbered in the order of their first stages, because the
            engine begins on IPU 0.
    """

    calls: tuple[tuple[StagedCall, ...], ...]
    ipus: tuple[int, ...]

    @property
    def num_ipus(self) -> int:
        """Number of IPUs of one replica."""
        return max(self.ipus) + 1

    @property
    def num_turns(self) -> int:
        """Number of stages if neighbours on one IPU count as one, as in the engine."""
        return 1 + sum(one != other for one, other in pairwise(self.ipus))


def plan_stages(model: Any, device_mapping: Sequence[int] | None) -> StagePlan | None:
    """Returns the stages of a model; `None` if it has none.

    Args:
        model: Sequential, functional model, or model of the user's own class.
        device_mapping: IPU of each stage; by default the number of the stage.

    Raises:
        ValueError: a call has no stage or precedes one of its inputs, a stage has no call, or
            `device_mapping` does not match the stages.
        Error: a `call` to be divided has effects that are not in its graph.
    """
    contents = contents_of(model)
    stages = stages_of(contents) if any_stages() else ()
    if not has_stages(stages):
        if device_mapping is not None:
            raise ValueError(
                f"device_mapping={list(device_mapping)} was given, but model {model.name!r} has no "
                "stages. Assign them with set_pipeline_stage_assignment or PipelineStage."
            )
        return None
    if contents.graph is None:
        raise no_graph(contents)
    _check_call(contents)
    numbers = _numbers(model, inlined(contents, stages))
    _check_order(numbers)
    num_stages = _num_stages(model, numbers)
    by_stage = tuple(
        tuple(call for call, number in numbers.items() if number == stage)
        for stage in range(num_stages)
    )
    return StagePlan(by_stage, _ipus(num_stages, device_mapping))


def _check_call(contents: Contents) -> None:
    if contents.fault:
        raise compiler_error(
            f"The call() of {type(contents.model).__name__} is divided into pipeline stages, for "
            f"which it is run once, on symbolic tensors. But {contents.fault}, which would be "
            "lost. Move that into the call() of a layer."
        )


def _numbers(model: Any, calls: Sequence[StagedCall]) -> dict[StagedCall, int]:
    """Returns the stage of each call."""
    missing = [call.name for call in calls if call.stage is None]
    if missing:
        raise ValueError(
            f"In model {model.name!r} some layer calls have a pipeline stage, but these have none: "
            f"{', '.join(missing)}. Give every call a stage, or call "
            "reset_pipeline_stage_assignment()."
        )
    return {call: call.stage for call in calls if call.stage is not None}


def _check_order(numbers: dict[StagedCall, int]) -> None:
    """Checks that no call uses a result of a later stage."""
    maker_of = {(call.frame, call.node): call for call in numbers}
    for call, stage in numbers.items():
        for tensor in call.node.arguments.keras_tensors:
            for maker in (maker_of[key] for key in makers(call.frame, tensor)):
                if numbers[maker] > stage:
                    raise ValueError(
                        f"Layer {call.name!r} is in pipeline stage {stage}, but takes a result of "
                        f"{maker.name!r} in stage {numbers[maker]}: stages must not decrease "
                        "along the model."
                    )


def _num_stages(model: Any, numbers: dict[StagedCall, int]) -> int:
    highest = max(numbers.values())
    unused = sorted(set(range(highest + 1)) - set(numbers.values()))
    if unused:
        raise ValueError(
            f"No layer of model {model.name!r} is in pipeline stage {unused[0]}, but one is in "
            f"stage {highest}. Number the stages from 0 without gaps."
        )
    return highest + 1


def _ipus(num_stages: int, device_mapping: Sequence[int] | None) -> tuple[int, ...]:
    if device_mapping is None:
        return tuple(range(num_stages))
    if len(device_mapping) != num_stages:
        raise ValueError(
            f"device_mapping has {len(device_mapping)} entries, {list(device_mapping)}, but the "
            f"model has {num_stages} stages. Give the IPU of each stage."
        )
    ipus = list(dict.fromkeys(device_mapping))
    if set(ipus) != set(range(len(ipus))):
        raise ValueError(
            f"device_mapping is {list(device_mapping)}, but the IPUs of a model are numbered from "
            "0 without gaps."
        )
    return tuple(ipus.index(ipu) for ipu in device_mapping)
