"""Assigns the layer calls of a model to the stages of a pipeline.

Sources of a stage, the first one winning: an assignment to the model; the `PipelineStage` around a
call, where a nested model's call precedes the calls inside it; an assignment to a nested
Sequential; the `PipelineStage` around the construction of the layer, or else of a model around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras

from poptorch_emu.keras.stages.model_contents import (
    Call,
    Contents,
    contents_of,
    keep_assigned,
)
from poptorch_emu.keras.stages.stage_entries import (
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)
from poptorch_emu.keras.stages.stage_marks import (
    Mark,
    Marked,
    Stages,
    any_stages,
    checked_stage,
    mark,
    note_any_stages,
    stage_of_construction,
)

_FunctionalLayer = FunctionalLayerPipelineStageAssignment
_Entry = (
    FunctionalLayerPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
)


def stages_of(contents: Contents, fallback: int | None = None) -> tuple[Stages, ...]:
    """Returns the stages of the calls of a model.

    Args:
        contents: contents of the model.
        fallback: stage of the calls that have no stage of their own.

    Raises:
        ValueError: a nested Sequential has other layers than when its stages were assigned.
    """
    return tuple(
        _stages_of_call(call, call.mark if given is Mark.UNMARKED else given, fallback)
        for call, given in zip(contents.calls, contents.marks, strict=True)
    )


def _stages_of_call(call: Call, said: Marked, fallback: int | None) -> Stages:
    if isinstance(said, int):
        return said
    inside = call.inside()
    if said is not Mark.UNMARKED or inside is None:
        return fallback if said is Mark.UNMARKED else said
    constructed = stage_of_construction(call.layer)
    return folded(stages_of(inside, fallback if constructed is None else constructed))


def folded(stages: tuple[Stages, ...]) -> Stages:
    """Returns one stage for a nested model whose calls are all in this stage."""
    first = stages[0] if stages else None
    return first if all(each == first for each in stages) and first != () else stages


def unfolded(stages: Stages, contents: Contents) -> Sequence[Stages]:
    """Returns the stages of the calls of a nested model.

    Raises:
        ValueError: the model had other calls when the stages were assigned.
    """
    if not isinstance(stages, tuple):
        return [stages] * len(contents.calls)
    if len(stages) != len(contents.calls):
        raise ValueError(
            f"The nested model {contents.model.name!r} has {len(contents.calls)} layer calls, but "
            f"had {len(stages)} when its pipeline stages were assigned. Call "
            "reset_pipeline_stage_assignment(), and assign them again."
        )
    return stages


def has_stages(stages: Stages) -> bool:
    """Returns whether any call has a stage."""
    return any(map(has_stages, stages)) if isinstance(stages, tuple) else stages is not None


def numbers_of(stages: Stages) -> Iterator[int]:
    """Yields all stages in a nested structure."""
    if isinstance(stages, tuple):
        for each in stages:
            yield from numbers_of(each)
    elif stages is not None:
        yield stages


def divisible(model: Any) -> Contents:
    """Returns the contents of a model that may have stages.

    Raises:
        ValueError: the model has no graph of layers.
    """
    contents = contents_of(model)
    if contents.graph is None and not isinstance(model, keras.Sequential):
        raise no_graph(contents)
    return contents


def no_graph(contents: Contents) -> ValueError:
    """Returns the error for a model that cannot be divided into stages."""
    return ValueError(
        f"Model {contents.model.name!r} has no graph of layers to divide into stages: "
        f"{contents.fault}. Pipelines need a keras.Sequential whose first entry is a keras.Input, "
        "or a functional model, keras.Model(inputs, outputs), or a call() of layers."
    )


def assignments_of(model: Any) -> list[Any]:
    """Returns an entry for each layer of a Sequential, or for each call of another model."""
    contents = divisible(model)
    return _entries(contents, stages_of(contents))


def _entries(contents: Contents, stages: Sequence[Stages]) -> list[Any]:
    return [_entry(contents, call, each) for call, each in zip(contents.calls, stages, strict=True)]


def _entry(contents: Contents, call: Call, stages: Stages) -> Any:
    by_layers = isinstance(contents.model, keras.Sequential) or contents.graph is None
    inside = call.inside()
    if inside is not None:
        entries = _entries(inside, unfolded(stages, inside))
        if by_layers:
            return SequentialNestedModelPipelineStageAssignment(call.layer, entries)
        index = call.layer._inbound_nodes.index(call.node)
        return FunctionalNestedModelPipelineStageAssignment(call.layer, index, entries)
    assert not isinstance(stages, tuple), "a layer has one stage"
    if by_layers:
        return SequentialLayerPipelineStageAssignment(call.layer, stages)
    if contents.call_graph is None:
        return _FunctionalLayer(call.layer, call.layer._inbound_nodes.index(call.node), stages)
    nodes = [each.node for each in contents.calls if each.layer is call.layer]
    entry = ModelLayerPipelineStageAssignment(call.layer, nodes.index(call.node), stages)
    entry._node = call.node
    return entry


def assign(model: Any, assignments: Sequence[Any]) -> None:
    """Assigns stages to the layers of a Sequential, or to the calls of another model.

    Raises:
        TypeError: an entry is not an assignment.
        ValueError: the entries do not match the layers or calls, a stage is not a number, or stages
            decrease in a Sequential.
    """
    contents = divisible(model)
    for each in assignments:
        if not isinstance(each, _Entry) and not isinstance(model, keras.Sequential):
            raise TypeError(
                "set_pipeline_stage_assignment of a functional model takes the entries of "
                f"get_pipeline_stage_assignment(), not {each!r}."
            )
    _give(contents, _checked(contents, assignments))


def _give(contents: Contents, stages: tuple[Stages, ...]) -> None:
    """Assigns stages to a Sequential, or to the calls of another model."""
    if isinstance(contents.model, keras.Sequential):
        note_any_stages()
        keep_assigned(contents.model, stages)
    elif contents.graph is not None:
        for call, each in zip(contents.calls, stages, strict=True):
            mark(call.node, each)


def known_stages(model: Any) -> tuple[Stages, ...] | None:
    """Returns the stages of the calls of a model; `None` if it has none."""
    stages = stages_of(contents_of(model)) if any_stages() else ()
    return stages if has_stages(stages) else None


def restore(model: Any, stages: Any) -> None:
    """Gives a model stages that were read from a file, or none if they are `None`.

    Raises:
        ValueError: the model has another number of calls, or a stage is no number.
    """
    if stages is not None:
        _give(contents_of(model), tuple(map(_read, stages)))


def _read(stages: Any) -> Stages:
    if isinstance(stages, list):
        return tuple(map(_read, stages))
    return None if stages is None else checked_stage(stages)


def unassign(model: Any) -> None:
    """Removes all stages from a model."""
    if isinstance(model, keras.Sequential):
        keep_assigned(model, None)
    for call in contents_of(model).calls:
        if call.node is not None:
            mark(call.node, None)


def _checked(contents: Contents, entries: Sequence[Any]) -> tuple[Stages, ...]:
    """Returns the stages in entries, or in numbers, for the calls of a model."""
    model, calls = contents.model, contents.calls
    names = ", ".join(call.layer.name for call in calls)
    if len(entries) != len(calls):
        kind = "layers" if isinstance(model, keras.Sequential) else "layer calls"
        raise ValueError(
            f"set_pipeline_stage_assignment got {len(entries)} stages, but model {model.name!r} "
            f"has {len(calls)} {kind}: {names}. Give one stage for each, in this order."
        )
    stages: list[Stages] = []
    for call, entry in zip(calls, entries, strict=True):
        if isinstance(entry, _Entry):
            _check_entry(contents, call, entry)
        stages.append(_checked_entry(call, entry))
    if isinstance(model, keras.Sequential):
        _check_order(calls, stages)
    return tuple(stages)


def _checked_entry(call: Call, entry: Any) -> Stages:
    if not isinstance(entry, NestedModelPipelineStageAssignment):
        return checked_stage(getattr(entry, "pipeline_stage", entry))
    inside = call.inside()
    assert inside is not None, "the entry is that of the call"
    stages = folded(_checked(inside, entry.pipeline_stage_assignments))
    if isinstance(stages, tuple) and inside.fault:
        raise undivided(call.layer.name, inside, stages)
    return stages


def undivided(name: str, inside: Contents, stages: Stages) -> ValueError:
    """Returns the error for a nested model that cannot be in several stages."""
    found = inside.call_graph
    way_out = (
        "enter stages around its call() instead of in it"
        if found is not None and found.enters_stages
        else "give all its layers one stage"
    )
    return ValueError(
        f"The nested model {name!r} is to be divided into the pipeline stages "
        f"{sorted(set(numbers_of(stages)))}, but it has to run as a whole: {inside.fault}. "
        f"Change that, or {way_out}."
    )


def _check_entry(contents: Contents, call: Call, entry: Any) -> None:
    node = getattr(entry, "node", None) if hasattr(entry, "node_index") else None
    if node is not None and node not in [each.node for each in contents.calls]:
        raise ValueError(
            f"Call {entry.node_index} of layer {entry.layer.name!r} is not part of "
            f"model {contents.model.name!r}. Take the entries of its "
            "get_pipeline_stage_assignment()."
        )
    if entry.layer is not call.layer or node not in (None, call.node):
        raise ValueError(
            f"The entry of layer {entry.layer.name!r} stands where model {contents.model.name!r} "
            f"has {call.layer.name!r}. Give the entries of its get_pipeline_stage_assignment() in "
            "their order."
        )


def _check_order(calls: Sequence[Call], stages: Sequence[Stages]) -> None:
    """Checks that stages do not decrease from layer to layer."""
    before = 0
    for call, each in zip(calls, stages, strict=True):
        numbers = list(numbers_of(each))
        if min(numbers, default=before) < before:
            raise ValueError(
                f"Layer {call.layer.name!r} has stage {min(numbers)}, but the layer before has "
                f"stage {before}: stages must not decrease along the model."
            )
        before = max(numbers, default=before)
