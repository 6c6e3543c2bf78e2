"""Entries of `get_pipeline_stage_assignment`: one for each layer or call, with its stage.

The entry of a nested model has entries of its own, for its layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class FunctionalLayerPipelineStageAssignment:
    """One call of a layer in a functional model, and its stage (exact).

    Attributes:
        layer: called layer.
        node_index: index of the call among the calls of the layer, from 0.
        pipeline_stage: stage of the call; `None` if it has none.
    """

    def __init__(self, layer: Any, node_index: int, pipeline_stage: int | None = None) -> None:
        """Describes a call."""
        self.layer = layer
        self.node_index = node_index
        self.pipeline_stage = pipeline_stage

    @property
    def inbound_layers(self) -> list[Any]:
        """The layers whose results the call uses (exact)."""
        return _inbound(self.node)

    @property
    def node(self) -> Any:
        """The node of Keras's graph (exact)."""
        return self.layer._inbound_nodes[self.node_index]

    def __repr__(self) -> str:
        """Returns a text with the call and its stage."""
        return f"{self.layer.name}[{self.node_index}]: stage {self.pipeline_stage}"


class ModelLayerPipelineStageAssignment(FunctionalLayerPipelineStageAssignment):
    """One call of a layer in the `call` of a user's own model class, and its stage (exact).

    The index counts the calls in `call`. Keras itself has called the layers before, to build them.
    """

    _node: Any = None

    @property
    def node(self) -> Any:
        """The node of Keras's graph (exact)."""
        return super().node if self._node is None else self._node


class SequentialLayerPipelineStageAssignment:
    """A layer of a Sequential, and its stage (exact).

    Attributes:
        layer: layer of the model.
        pipeline_stage: stage of the layer; `None` if it has none.
    """

    def __init__(self, layer: Any, pipeline_stage: int | None = None) -> None:
        """Describes a layer."""
        self.layer = layer
        self.pipeline_stage = pipeline_stage

    @property
    def inbound_layers(self) -> list[Any]:
        """The layer before, if the model is built (exact)."""
        return [each for node in self.layer._inbound_nodes[-1:] for each in _inbound(node)]

    def __repr__(self) -> str:
        """Returns a text with the layer and its stage."""
        return f"{self.layer.name}: stage {self.pipeline_stage}"


class NestedModelPipelineStageAssignment:
    """A model that is called as a layer, and the stages of its own layers (exact).

    Attributes:
        nested_model: called model.
        pipeline_stage_assignments: entries of the model's layers.
    """

    def __init__(
        self, nested_model: Any, pipeline_stage_assignments: Sequence[Any] | None = None
    ) -> None:
        """Describes a nested model."""
        self.nested_model = self.layer = nested_model
        self.pipeline_stage_assignments = list(pipeline_stage_assignments or ())

    @property
    def pipeline_stage(self) -> int | None:
        """The common stage of all layers of the model, which can be set.

        Raises:
            ValueError: the layers have several stages.
        """
        stages = list(dict.fromkeys(self._stages()))
        if len(stages) > 1:
            raise ValueError(
                f"The layers of the nested model {self.nested_model.name!r} have several pipeline "
                f"stages, {', '.join(map(str, stages))}, and the model as a whole has none. Read "
                "those of its pipeline_stage_assignments."
            )
        return next(iter(stages), None)

    @pipeline_stage.setter
    def pipeline_stage(self, stage: int | None) -> None:
        for each in self.pipeline_stage_assignments:
            each.pipeline_stage = stage

    def __repr__(self) -> str:
        """Returns a text with the model and its entries."""
        return f"{self.nested_model.name}: {self.pipeline_stage_assignments}"

    def _stages(self) -> Iterator[int | None]:
        for each in self.pipeline_stage_assignments:
            if isinstance(each, NestedModelPipelineStageAssignment):
                yield from each._stages()
            else:
                yield each.pipeline_stage


class SequentialNestedModelPipelineStageAssignment(
    NestedModelPipelineStageAssignment, SequentialLayerPipelineStageAssignment
):
    """A model that is a layer of a Sequential (exact)."""


class FunctionalNestedModelPipelineStageAssignment(
    NestedModelPipelineStageAssignment, FunctionalLayerPipelineStageAssignment
):
    """One call of a model in a functional model (exact).

    Attributes:
        node_index: index of the call among the calls of the model, from 0.
    """

    def __init__(
        self,
        nested_model: Any,
        node_index: int,
        pipeline_stage_assignments: Sequence[Any] | None = None,
    ) -> None:
        """Describes a call."""
        super().__init__(nested_model, pipeline_stage_assignments)
        self.node_index = node_index


def _inbound(node: Any) -> list[Any]:
    return [parent.operation for parent in node.parent_nodes]
