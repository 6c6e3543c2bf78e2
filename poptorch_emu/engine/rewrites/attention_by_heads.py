"""Runs attention in inference on the engine's small products, if PyTorch's library is slow.

PyTorch's kernel calls MKL for products of a few rows. On AMD processors MKL then uses only half of
the vector width. Attention without a mask consists of a product, a softmax and another product. The
scores of a few heads at a time stay in a core's cache (`csrc/ops/attention_by_heads.cpp`).
"""

from __future__ import annotations

import math
import operator

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph, is_single
from poptorch_emu.engine.product_kernels import Role, choose
from poptorch_emu.ir.arguments import arguments_of

aten = torch.ops.aten

_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
_BY_HEADS = torch.ops.poptorch_emu.attention_by_heads.default


def attend_by_heads(code: EngineGraph) -> int:
    """Replaces attention without mask and dropout; returns the number of replaced operations."""
    found = code.graph.fx.find_nodes(op="call_function", target=_ATTENTION)
    changed = [node for node in found if _is_plain(node)]
    for node in changed:
        _replace(node, code)
    return len(changed)


def _is_plain(node: fx.Node) -> bool:
    call = arguments_of(node)
    query, key, value = (each.meta["val"] for each in (call.query, call.key, call.value))
    return (
        call.dropout_p == 0
        and not call.is_causal
        and call.attn_mask is None
        and all(is_single(each) for each in (call.query, call.key, call.value))
        and key.shape == value.shape
        and query.shape[:2] == key.shape[:2]  # Grouped heads stay with PyTorch.
        and query.stride()[-1] == 1
        and choose(Role.ATTENTION, query.shape[-2], *key.shape[-2:]) is not None
        and all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)
    )


def _replace(node: fx.Node, code: EngineGraph) -> None:
    call = arguments_of(node)
    depth = call.query.meta["val"].shape[-1]
    scale = call.scale if call.scale is not None else 1 / math.sqrt(depth)
    args = (call.query, call.key, call.value, scale)
    value = node.meta["val"][0]
    for result in list(node.users):
        result.replace_all_uses_with(code.insert(node, _BY_HEADS, args, value))
