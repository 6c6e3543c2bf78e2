"""A run that consists of module outputs given by the user, by the paths of the modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from poptorch_emu.errors import make_error
from poptorch_emu.ir.graph import record_of
from poptorch_emu.ir.record import Phase
from poptorch_emu.numbers.engine_run import ObservedGraph
from poptorch_emu.numbers.run import Direction, Position, Run, Value


class ModuleOutputs:
    """Outputs of modules, each from one micro-batch or from all micro-batches of a window.

    The output of a module is the last result in its last forward that has the shape of the output.

    Attributes:
        matched: numbers of our values, with the numbers of their outputs here.
    """

    title = "outputs of modules"

    def __init__(self, outputs: Mapping[str, Any], observed: ObservedGraph, ours: Run) -> None:
        """Finds the value of our run for each output.

        Raises:
            Error: the model has no such module, or the module has no result of the output's shape.
        """
        self.positions: tuple[Position, ...] = ours.positions
        self._tensors: list[list[torch.Tensor]] = []
        self.matched: dict[int, int] = {}
        values = list[Value]()
        nodes = _forward_values(observed)
        for path, output in outputs.items():
            tensor = _tensor(path, output)
            node = _output_of(path, tensor, nodes, len(self.positions))
            self.matched[observed.numbers[node]] = len(values)
            meta = node.meta["val"]
            values.append(
                Value("tensor", 0, Direction.FORWARD, path, record_of(node).source, tensor.dtype,
                      tuple(meta.shape))
            )  # fmt: skip
            parts = tensor.detach().cpu().reshape(-1, *meta.shape).unbind(0)
            self._tensors.append(list(parts))
        self.values = tuple(values)

    def read(self, index: int, position: Position) -> torch.Tensor | None:
        """Returns an output at a position; `None` if only the first micro-batch was given."""
        number, parts = self.positions.index(position), self._tensors[index]
        return parts[number] if number < len(parts) else None


def _forward_values(observed: ObservedGraph) -> list[fx.Node]:
    return [
        node
        for node in observed.numbers
        if node.op == "call_function" and record_of(node).phase is Phase.FORWARD
    ]


def _tensor(path: str, output: Any) -> torch.Tensor:
    """Returns the output, or the first tensor in a structure of several outputs."""
    while isinstance(output, (list, tuple, dict)) and len(output) > 0:
        output = next(iter(output.values() if isinstance(output, dict) else output))
    if not isinstance(output, torch.Tensor):
        raise make_error(
            f"The output of '{path}' is of type {type(output).__name__}. Give a tensor, or a tuple "
            "whose first element is one."
        )
    return output


def _output_of(
    path: str, tensor: torch.Tensor, nodes: Sequence[fx.Node], num_places: int
) -> fx.Node:
    own = [node for node in nodes if (record_of(node).module + ".").startswith(path + ".")
           or not path]  # fmt: skip
    if not own:
        known = sorted({record_of(node).module for node in nodes} - {""})
        raise make_error(
            f"No operation of the model runs in a module '{path}'. Modules that have some are: "
            f"{', '.join(known) or 'none'}."
        )
    for node in reversed(own):
        shape = tuple(node.meta["val"].shape)
        if tuple(tensor.shape) == shape or _is_window(tensor, shape, num_places):
            return node
    last = list(own[-1].meta["val"].shape)
    raise make_error(
        f"The output of '{path}' has the shape {list(tensor.shape)}, and in a micro-batch it is "
        f"{last}, of which there are {num_places}. Give the output of one micro-batch, or of all "
        "of them joined along axis 0."
    )


def _is_window(tensor: torch.Tensor, shape: tuple[int, ...], num_places: int) -> bool:
    return bool(shape) and tuple(tensor.shape) == (shape[0] * num_places, *shape[1:])
