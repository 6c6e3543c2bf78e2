"""Chooses kernels of recurrent layers, and the form of the gradient of a layer's last output.

Programs often read only the last step of a layer. The gradient of all other steps is then zero, but
the engine would fill a whole sequence with zeros and add it. The last output is the same value as
the final state, and the layer's backward accepts a gradient of that state.
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.product_kernels import Role, choose
from poptorch_emu.ir.arguments import arguments_of, with_arguments

aten = torch.ops.aten

_LAYER = torch.ops.poptorch_emu.rnn_layer.default
_BACKWARD = torch.ops.poptorch_emu.rnn_layer_backward.default


def train_by_rows(code: EngineGraph) -> int:
    """Trains LSTMs by blocks of rows where that is faster; returns the number of operations."""
    layers = [node for node in code.graph.operations if node.target in (_LAYER, _BACKWARD)]
    changed = [node for node in layers if _is_faster_by_rows(node)]
    for node in changed:
        node.args = with_arguments(node, by_rows=True)
    return len(changed)


def _is_faster_by_rows(node: fx.Node) -> bool:
    """Returns whether blocks of rows are faster; a layer and its backward have the same sizes."""
    layer = arguments_of(node)
    x, w_hh = layer.input.meta["val"], layer.weights[1].meta["val"]
    is_trained = node.target is _BACKWARD or layer.training
    has_projection = len(layer.weights) % 2 == 1
    is_supported = x.dtype.is_floating_point and x.dtype.itemsize <= 4 and x.numel() > 0
    if layer.mode != "lstm" or has_projection or not (is_trained and is_supported):
        return False
    _, num_rows, num_inputs = x.shape
    return choose(Role.LSTM, num_rows, num_inputs, w_hh.shape[1]) is not None


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
