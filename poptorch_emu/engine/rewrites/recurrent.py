"""Passes the gradient of a recurrent layer's last output as the gradient of its final state.

Programs often read only the last step of a layer. The gradient of all other steps is then zero, but
the engine would fill a whole sequence with zeros and add it. The last output is the same value as
the final state, and the layer's backward accepts a gradient of that state.
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.ir.arguments import arguments_of, with_arguments

aten = torch.ops.aten

_BACKWARD = torch.ops.poptorch_emu.rnn_layer_backward.default


def take_last_steps(code: EngineGraph) -> int:
    """Replaces gradients of layers whose last step alone is read; returns their number."""
    changed = 0
    for backward in list(code.graph.fx.find_nodes(op="call_function", target=_BACKWARD)):
        gradient = _gradient_of_last_step(backward)
        if gradient is None:
            continue
        of_state = arguments_of(backward).grad_h
        if of_state is not None:
            value = gradient.meta["val"]
            gradient = code.insert(backward, aten.add.Tensor, (of_state, gradient), value)
        args = with_arguments(backward, grad_output=None, grad_h=gradient)
        made = code.insert(backward, _BACKWARD, args, backward.meta["val"])
        backward.replace_all_uses_with(made)
        changed += 1
    return changed


def _gradient_of_last_step(backward: fx.Node) -> fx.Node | None:
    """Returns the gradient (batch, size) of the last time step, if all other steps have none."""
    layer = arguments_of(backward)
    whole, steps_dim = layer.grad_output, 0
    if not isinstance(whole, fx.Node):
        return None
    if whole.target is aten.transpose.int and _dims(whole) == {0, 1}:
        whole, steps_dim = arguments_of(whole).self, 1
    if whole.target is not aten.select_backward.default:
        return None
    step = arguments_of(whole)
    dim = step.dim % len(step.input_sizes)
    last = 0 if layer.reverse else step.input_sizes[steps_dim] - 1
    is_last = dim == steps_dim and step.index % step.input_sizes[dim] == last
    return step.grad_output if is_last and isinstance(step.grad_output, fx.Node) else None


def _dims(transpose: fx.Node) -> set[int]:
    num_dims, call = transpose.meta["val"].dim(), arguments_of(transpose)
    return {call.dim0 % num_dims, call.dim1 % num_dims}
