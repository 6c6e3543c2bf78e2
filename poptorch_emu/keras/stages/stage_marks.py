"""`PipelineStage`, and the stages of calls and layers from it or from an assignment.

A call of a layer on symbolic tensors is a node of Keras's graph, and a layer that is called twice
has two nodes. Therefore stages belong to nodes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeAlias

import keras
from keras.src.ops.node import Node
from keras.src.ops.operation import Operation

from poptorch_emu.trace.places.blocks import is_tracing


class Mark(Enum):
    """Mark of a call without an assigned stage."""

    UNMARKED = 0


# Stages of a call: one number, `None`, or the stages of the calls inside a nested model.
Stages: TypeAlias = "int | tuple[Stages, ...] | None"
Marked: TypeAlias = "Stages | Mark"

_stages_of_node: weakref.WeakKeyDictionary[Any, Stages] = weakref.WeakKeyDictionary()
_stage_of_construction: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_local = threading.local()
_make_node = Node.__init__
_make_operation = Operation.__init__
_any_stages = False


def _make_marked_node(self: Any, *args: Any, **kwargs: Any) -> None:
    _make_node(self, *args, **kwargs)
    stage = _current_stage()
    if stage is None and not isinstance(self.operation, keras.Model):
        stage = stage_of_construction(self.operation)
    if stage is not None:
        _stages_of_node[self] = stage


def _make_marked_operation(self: Any, name: str | None = None) -> None:
    """Replaces `Operation.__init__`; Keras derives files from its parameters, so they are equal."""
    _make_operation(self, name=name)
    stage = _current_stage()
    if stage is not None:
        _stage_of_construction[self] = stage


def _current_stage() -> int | None:
    stages: list[int] = vars(_local).get("stages", [])
    return stages[-1] if stages else None


class PipelineStage:
    """Puts the layers of a `with` statement in one stage of a pipeline (exact).

    The stage applies to layers that are called inside, and to layers that are constructed inside
    and called outside of any stage. It can be used with the functional API, and in the `call` of a
    user's own model class.
    """

    def __init__(self, stage: int) -> None:
        """Takes the number of the stage, from 0.

        Raises:
            ValueError: `stage` is not an integer from 0 on.
        """
        self._stage = checked_stage(stage)

    def __enter__(self) -> PipelineStage:
        """Begins the stage.

        Raises:
            RuntimeError: another stage is open.
            ValueError: a model is being run.
        """
        if is_tracing():
            raise ValueError(
                f"PipelineStage({self._stage}) is entered in the call() of a layer, or of a model "
                "whose inputs were not known when it was compiled. Enter stages in the call() of "
                "a model alone, and call its build(input_shape) first; or use the functional "
                "API, keras.Model(inputs, outputs)."
            )
        vars(_local).get("noted", []).append(self._stage)
        stages = vars(_local).setdefault("stages", [])
        if stages:
            raise RuntimeError(
                f"PipelineStage({self._stage}) is entered inside PipelineStage({stages[-1]}). "
                "Leave one stage before the next."
            )
        stages.append(self._stage)
        note_any_stages()
        Node.__init__ = _make_marked_node  # Never restored: other threads may be in a stage, too.
        Operation.__init__ = _make_marked_operation
        return self

    def __exit__(self, *failure: object) -> None:
        """Ends the stage."""
        _local.stages.pop()


@contextmanager
def noted_stages() -> Iterator[list[int]]:
    """Yields a list that receives the stages entered in the context."""
    before = vars(_local).get("noted", [])
    noted = vars(_local)["noted"] = []
    try:
        yield noted
    finally:
        vars(_local)["noted"] = before


def checked_stage(stage: Any) -> int:
    """Returns the number of a stage.

    Raises:
        ValueError: `stage` is not an integer from 0 on.
    """
    if not isinstance(stage, int) or isinstance(stage, bool) or stage < 0:
        raise ValueError(f"A pipeline stage must be an integer from 0 on, not {stage!r}.")
    return stage


def note_any_stages() -> None:
    """Records that the process has stages, so that models are searched for them from now on."""
    global _any_stages
    _any_stages = True


def any_stages() -> bool:
    """Returns whether any model of the process may have stages."""
    return _any_stages


def mark_of(node: Any) -> Marked:
    """Returns the stages assigned to a call, or the mark that there are none."""
    return _stages_of_node.get(node, Mark.UNMARKED)


def mark(node: Any, stages: Stages) -> None:
    """Assigns stages to a call; `None` also removes those of the calls inside."""
    note_any_stages()
    _stages_of_node[node] = stages


def stage_of_construction(operation: Any) -> int | None:
    """Returns the stage of a layer's construction, or `None`."""
    return _stage_of_construction.get(operation)
