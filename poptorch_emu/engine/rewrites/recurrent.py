"""Takes the gradient of a recurrent layer's last output as that of its final state.

Programs often read the last step of a layer alone. Its gradient is zero for all others: the engine
would fill a whole sequence with zeros and add them up. The last output is the final state, whose
gradient the layer takes by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph

aten = torch.ops.aten

_BACKWARD = torch.ops.poptorch_emu.rnn_layer_backward.default
_SELECTED = aten.select_backward.default
# Places among the arguments of a layer's gradient.
_OUTPUT, _STATE, _IS_REVERSE = 0, 1, 11


def take_last_steps(code: EngineGraph) -> int:
    """Changes gradients of layers of which only the last step was read; returns how many."""
    changed = 0
    for backward in list(code.graph.fx.find_nodes(op="call_function", target=_BACKWARD)):
        gradient = _gradient_of_last_step(backward)
        if gradient is None:
            continue
        state = backward.args[_STATE]
        if state is not None:
            value = gradient.meta["val"]
            gradient = code.insert(backward, aten.add.Tensor, (state, gradient), value)
        args = (None, gradient, *backward.args[_STATE + 1 :])
        made = code.insert(backward, _BACKWARD, args, backward.meta["val"])
        backward.replace_all_uses_with(made)
        changed += 1
    return changed


def _gradient_of_last_step(backward: fx.Node) -> fx.Node | None:
    """Returns the gradient (batch, size) of the last step taken, if all others are zero."""
    whole = backward.args[_OUTPUT]
    if not isinstance(whole, fx.Node):
        return None
    steps_dim = 0
    if whole.target is aten.transpose.int and _dims(whole) == {0, 1}:
        whole, steps_dim = whole.args[0], 1
        assert isinstance(whole, fx.Node)
    if whole.target is not _SELECTED:
        return None
    arguments: tuple[Any, ...] = whole.args
    gradient, sizes, dim, index = arguments
    last = 0 if backward.args[_IS_REVERSE] else sizes[steps_dim] - 1
    is_last = dim % len(sizes) == steps_dim and index % sizes[dim] == last
    return gradient if is_last and isinstance(gradient, fx.Node) else None


def _dims(transpose: fx.Node) -> set[Any]:
    num_dims = transpose.meta["val"].dim()
    return {int(dim) % num_dims for dim in transpose.args[1:]}  # type: ignore[arg-type]
