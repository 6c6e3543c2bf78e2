"""Rules for operations that compute row by row, with the layouts of the rows of their results.

A rule reads the layouts of the rows of an operation's arguments. It returns the layouts that the
arguments must have so that the operation computes all micro-batches at once, changed arguments, and
the layouts of the results. A result may also be a sum over the rows: the joined operation then
returns the sum over the micro-batches. An operation without a rule is not joined.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from poptorch_emu.engine.joining import view_rules
from poptorch_emu.engine.joining.call import Call, Form, Joined, Rule, require
from poptorch_emu.engine.joining.row_layout import RowLayout
from poptorch_emu.ir.operator_traits import traits_of

aten = torch.ops.aten


def joined_form(call: Call) -> Joined:
    """Returns an operation's way to compute all micro-batches at once.

    Raises:
        NotByRowsError: the operation mixes rows, or no rule covers it.
    """
    target = call.node.target
    rule = _RULES.get(target)
    if rule is None:
        require(traits_of(target).is_pointwise and "reduction" not in vars(call.arguments))
        rule = _elementwise
    form = rule(call)
    # An overload may have a result that its rule does not cover.
    require(len(form.results) == call.num_results)
    return form


def _elementwise(call: Call) -> Joined:
    """Rule for pointwise operations, which align shapes at the last dimension."""
    names = [name for name in vars(call.arguments) if call.nodes(name)]
    require(all(len(call.nodes(name)) == 1 for name in names))
    require(all(value.shape == call.out for value in call.results))
    rank = len(call.out)
    by = {name: rank - len(call.shape(name)) for name in names}
    with_rows = [name for name in names if not call.is_shared(name)]
    found = {
        call.layout(name).moved(by[name])
        for name in with_rows
        if isinstance(call.form(name), RowLayout)
    } or {call.layout(with_rows[0]).moved(by[with_rows[0]])}
    require(len(found) == 1)
    (layout,) = found
    layouts = {}
    for name in names:
        own = layout.moved(-by[name])
        size = call.shape(name)[own.dim] if own.dim >= 0 else 1
        if call.is_shared(name) and size == 1:
            continue
        require(own.dim >= 0 and size == call.out[layout.dim] and call.fits(name, own))
        layouts[name] = own
    return Joined(layouts, (layout,) * call.num_results)


def _first_dimension(*names: str, results: int = 1) -> Rule:
    """Returns a rule for operations that compute each element of the first dimension separately."""

    def rule(call: Call) -> Joined:
        layout = call.layout(*names)
        require(layout.dim == 0)
        return Joined(dict.fromkeys(names, layout), (layout,) * results)

    return rule


def _not_along(*names: str, results: int = 1) -> Rule:
    """Returns a rule for operations along `dim` that compute each row of other dimensions alone."""

    def rule(call: Call) -> Joined:
        layout = call.layout(*names)
        require(call.along(call.arguments.dim, names[0]) != layout.dim)
        return Joined(dict.fromkeys(names, layout), (layout,) * results)

    return rule


def _reduced(call: Call, is_sum: bool = False, results: int = 1) -> Joined:
    layout = call.layout("self")
    dims = call.arguments.dim
    dims = [dims] if isinstance(dims, int) else list(dims or [])
    across = {call.along(dim) for dim in dims} or set(range(len(call.shape("self"))))
    if layout.dim in across:
        require(is_sum)
        return Joined({"self": layout}, (Form.SUM,))
    left = 0 if call.arguments.keepdim else sum(dim < layout.dim for dim in across)
    return Joined({"self": layout}, (layout.moved(-left),) * results)


def _product(call: Call) -> Joined:
    """Rule for products of matrices; if both have the rows, the result is a sum over them."""
    if call.is_shared("mat2"):
        layout = call.layout("self")
        require(layout.dim == 0)
        return Joined({"self": layout}, (layout,))
    if call.is_shared("self"):
        layout = call.layout("mat2")
        if layout.dim == 1:
            return Joined({"mat2": layout}, (layout,))
    outer = {
        call.layout(name).outer
        for name in ("self", "mat2")
        if isinstance(call.form(name), RowLayout)
    }
    require(len(outer) <= 1)
    left, right = RowLayout(1, *outer), RowLayout(0, *outer)
    require(call.fits("self", left) and call.fits("mat2", right))
    return Joined({"self": left, "mat2": right}, (Form.SUM,))


def _product_and_row(call: Call) -> Joined:
    """Rule for (rows, k) @ (k, n) plus a row of n numbers."""
    layout = call.layout("mat1")
    bias = call.shape("self")
    is_row = len(bias) == 1 or bias[0] == 1 < call.out[0]
    require(layout.dim == 0 and call.is_shared("mat2") and call.is_shared("self") and is_row)
    return Joined({"mat1": layout}, (layout,))


def _products(call: Call) -> Joined:
    """Rule for batched products; one of the matrices may be shared by all micro-batches."""
    forms = [call.form("self"), call.form("mat2")]
    if Form.SHARED in forms:
        name, dim = ("self", 1) if forms[1] is Form.SHARED else ("mat2", 2)
        layout = call.layout(name)
        if layout.dim == dim:
            return Joined({name: layout}, (layout,))
    layout = call.layout("self", "mat2")
    require(layout.dim == 0)
    return Joined({"self": layout, "mat2": layout}, (layout,))


def _attention(*names: str, results: int) -> Rule:
    """Returns a rule for attention, which computes each element of the first dimension alone."""

    def rule(call: Call) -> Joined:
        layout = call.layout(*names)
        require(layout.dim == 0 and call.arguments.dropout_p == 0)
        layouts = dict.fromkeys(names, layout)
        if call.nodes("attn_mask"):
            mask = call.shape("attn_mask")
            is_one = len(mask) < 4 or mask[0] == 1 < call.shape("query")[0]
            if not (call.is_shared("attn_mask") and is_one):
                require(len(mask) == 4 and mask[0] == call.shape("query")[0])
                require(call.fits("attn_mask", layout))
                layouts["attn_mask"] = layout
        return Joined(layouts, (layout,) * results)

    return rule


def _convolution_backward(call: Call) -> Joined:
    layout = call.layout("grad_output", "input")
    require(layout.dim == 0)
    return Joined({"grad_output": layout, "input": layout}, (layout, Form.SUM, Form.SUM))


def _layer_norm(call: Call) -> Joined:
    layout = call.layout("input")
    require(layout.dim < len(call.shape("input")) - len(call.arguments.normalized_shape))
    return Joined({"input": layout}, (layout,) * 3)


def _layer_norm_backward(call: Call) -> Joined:
    names = ("grad_out", "input", "mean", "rstd")
    layout = call.layout(*names)
    require(layout.dim < len(call.shape("input")) - len(call.arguments.normalized_shape))
    return Joined(dict.fromkeys(names, layout), (layout, Form.SUM, Form.SUM))


def _group_norm(call: Call) -> Joined:
    layout = call.layout("input")
    require(layout.dim == 0)
    return Joined({"input": layout}, (layout,) * 3, {"N": call.arguments.N * call.count})


def _group_norm_backward(call: Call) -> Joined:
    names = ("grad_out", "input", "mean", "rstd")
    layout = call.layout(*names)
    require(layout.dim == 0)
    results = (layout, Form.SUM, Form.SUM)
    return Joined(dict.fromkeys(names, layout), results, {"N": call.arguments.N * call.count})


def _batch_norm(call: Call) -> Joined:
    """Rule for batch norm with fixed statistics, which saves empty statistics."""
    layout = call.layout("input")
    require(layout.dim == 0 and not call.arguments.training)
    return Joined({"input": layout}, (layout, Form.PIECES, Form.PIECES))


def _embedding(call: Call) -> Joined:
    layout = call.layout("indices")
    return Joined({"indices": layout}, (layout,))


def _embedding_backward(call: Call) -> Joined:
    names = ("grad_output", "indices")
    layout = call.layout(*names)
    require(not call.arguments.scale_grad_by_freq and layout.dim < len(call.shape("indices")))
    return Joined(dict.fromkeys(names, layout), (Form.SUM,))


_RULES: dict[Any, Rule] = {
    **view_rules.RULES,
    aten.mm.default: _product,
    aten.addmm.default: _product_and_row,
    aten.bmm.default: _products,
    aten.convolution.default: _first_dimension("input"),
    aten.convolution_backward.default: _convolution_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.native_batch_norm.default: _batch_norm,
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention(
        "query", "key", "value", results=2
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention(
        "grad_out", "query", "key", "value", "out", "logsumexp", results=3
    ),
    aten.max_pool2d_with_indices.default: _first_dimension("self", results=2),
    aten.max_pool2d_with_indices_backward.default: _first_dimension(
        "grad_output", "self", "indices"
    ),
    aten.avg_pool2d.default: _first_dimension("self"),
    aten.avg_pool2d_backward.default: _first_dimension("grad_output", "self"),
    aten._adaptive_avg_pool2d.default: _first_dimension("self"),
    aten._adaptive_avg_pool2d_backward.default: _first_dimension("grad_output", "self"),
    aten._softmax.default: _not_along("self"),
    aten._log_softmax.default: _not_along("self"),
    aten._softmax_backward_data.default: _not_along("grad_output", "output"),
    aten._log_softmax_backward_data.default: _not_along("grad_output", "output"),
    aten.cumsum.default: _not_along("self"),
    aten.cumprod.default: _not_along("self"),
    aten.sort.default: _not_along("self", results=2),
    aten.topk.default: _not_along("self", results=2),
    aten.sum.dim_IntList: partial(_reduced, is_sum=True),
    aten.mean.dim: _reduced,
    aten.amax.default: _reduced,
    aten.amin.default: _reduced,
    aten.var.correction: _reduced,
    aten.any.dim: _reduced,
    aten.all.dim: _reduced,
    aten.max.dim: partial(_reduced, results=2),
    aten.min.dim: partial(_reduced, results=2),
}
