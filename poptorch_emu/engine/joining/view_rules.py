"""Rules for the layouts of rows in operations that move or select elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from poptorch_emu.engine.joining.call import Call, Joined, NotByRowsError, Rule, require
from poptorch_emu.engine.joining.row_layout import RowLayout

aten = torch.ops.aten


def _view(call: Call) -> Joined:
    layout = call.layout("self")
    seen = layout.seen_as(call.shape("self"), call.out)
    if seen is None:
        raise NotByRowsError
    name = "shape" if "shape" in vars(call.arguments) else "size"
    return Joined({"self": layout}, (seen,), {name: seen.shape(call.out, call.count)})


def _expand(call: Call) -> Joined:
    layout = call.layout("self")
    seen = layout.moved(len(call.out) - len(call.shape("self")))
    require(call.shape("self")[layout.dim] == call.out[seen.dim])
    return Joined({"self": layout}, (seen,), {"size": seen.shape(call.out, call.count)})


def _unsqueeze(call: Call) -> Joined:
    layout = call.layout("self")
    dim = call.arguments.dim % len(call.out)
    return Joined({"self": layout}, (layout.moved(1 if dim <= layout.dim else 0),))


def _squeeze(call: Call) -> Joined:
    layout = call.layout("self")
    dims = call.arguments.dim
    asked = {call.along(dim) for dim in ([dims] if isinstance(dims, int) else dims)}
    gone = {dim for dim in asked if call.shape("self")[dim] == 1}
    require(layout.dim not in asked)
    return Joined({"self": layout}, (layout.moved(-sum(dim < layout.dim for dim in gone)),))


def _permuted(call: Call, order: Sequence[int]) -> Joined:
    layout = call.layout("self")
    return Joined({"self": layout}, (RowLayout(list(order).index(layout.dim), layout.outer),))


def _permute(call: Call) -> Joined:
    return _permuted(call, [call.along(dim) for dim in call.arguments.dims])


def _transpose(call: Call) -> Joined:
    order = list(range(len(call.out)))
    first, second = call.along(call.arguments.dim0), call.along(call.arguments.dim1)
    order[first], order[second] = second, first
    return _permuted(call, order)


def _matrix_transpose(call: Call) -> Joined:
    return _permuted(call, range(len(call.out))[::-1])


def _select(call: Call) -> Joined:
    """Rule for selecting one index, or all indices, of a dimension without rows."""
    layout, dim = call.layout("self"), call.along(call.arguments.dim)
    require(dim != layout.dim)
    return Joined({"self": layout}, (layout.moved(-(dim < layout.dim)),) * call.num_results)


def _slice(call: Call) -> Joined:
    """Rule for slicing one part, or all parts, of a dimension without rows."""
    layout = call.layout("self")
    require(call.along(call.arguments.dim) != layout.dim)
    return Joined({"self": layout}, (layout,) * call.num_results)


def _together(name: str) -> Rule:
    """Returns a rule for concatenation in a dimension without rows; `name` is the argument."""

    def rule(call: Call) -> Joined:
        layout = call.layout(name)
        require(call.along(call.arguments.dim, name) != layout.dim)
        require(all(len(n.meta["val"].shape) == len(call.out) for n in call.nodes(name)))
        return Joined({name: layout}, (layout,))

    return rule


def _stack(call: Call) -> Joined:
    layout = call.layout("tensors")
    dim = call.arguments.dim % len(call.out)
    return Joined({"tensors": layout}, (layout.moved(dim <= layout.dim),))


def _whole_again(call: Call) -> Joined:
    """Rule for gradients of selections and slices, which pad a part with zeros."""
    sizes, layout = call.arguments.input_sizes, call.layout("grad_output")
    dim = call.arguments.dim % len(sizes)
    is_select = call.node.target is aten.select_backward.default
    whole = layout.moved(is_select and dim <= layout.dim)
    require(dim != whole.dim)
    return Joined(
        {"grad_output": layout}, (whole,), {"input_sizes": whole.shape(sizes, call.count)}
    )


def _gather(call: Call) -> Joined:
    layout = call.layout("self", "index")
    sizes = call.shape("self")[layout.dim], call.shape("index")[layout.dim]
    require(call.along(call.arguments.dim) != layout.dim and sizes[0] == sizes[1])
    return Joined({"self": layout, "index": layout}, (layout,))


def _pad(call: Call) -> Joined:
    layout = call.layout("self")
    require(layout.dim < len(call.out) - len(call.arguments.pad) // 2)
    return Joined({"self": layout}, (layout,))


def _triangle(call: Call) -> Joined:
    layout = call.layout("self")
    require(layout.dim < len(call.out) - 2)
    return Joined({"self": layout}, (layout,))


def _same(call: Call) -> Joined:
    layout = call.layout("self")
    return Joined({"self": layout}, (layout,))


RULES: dict[Any, Rule] = {
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.reshape.default: _view,
    aten.expand.default: _expand,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _matrix_transpose,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.split.Tensor: _slice,
    aten.split_with_sizes.default: _slice,
    aten.unbind.int: _select,
    aten.cat.default: _together("tensors"),
    torch.ops.poptorch_emu.joined_gradients.default: _together("parts"),
    aten.stack.default: _stack,
    aten.select_backward.default: _whole_again,
    aten.slice_backward.default: _whole_again,
    aten.gather.default: _gather,
    aten.constant_pad_nd.default: _pad,
    aten.tril.default: _triangle,
    aten.triu.default: _triangle,
    aten.clone.default: _same,
    aten.contiguous.default: _same,
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten._to_copy.default: _same,
}
