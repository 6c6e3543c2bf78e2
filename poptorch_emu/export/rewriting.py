"""Replacements in plain PyTorch for operations of a compiled graph.

The same rules write modules and compute values, because `Call` does either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from poptorch_emu.engine.instruction import SAFE_TWINS
from poptorch_emu.passes.memory_order import STRIDED

aten = torch.ops.aten

# Runs an operation, or writes the call into a graph; returns the value or its node.
Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
BATCH_NORM = aten._native_batch_norm_legit_functional.default

# PyTorch's operation that fills a tensor, for each of ours that creates one of a size and dtype.
_FILLS = {
    "uniform": aten.uniform.default,
    "normal": aten.normal_functional.default,
    "log_normal": aten.log_normal.default,
    "exponential": aten.exponential.default,
    "cauchy": aten.cauchy.default,
    "geometric": aten.geometric.default,
    "bernoulli": aten.bernoulli.p,
}
# PyTorch's operation for each of ours with tensor arguments; our first two arguments are dropped.
_OF_TENSORS = {
    "normal.tensor": aten.normal.Tensor_Tensor,
    "normal.tensor_float": aten.normal.Tensor_float,
    "normal.float_tensor": aten.normal.float_Tensor,
    "multinomial": aten.multinomial.default,
}


def random_name(node: fx.Node) -> str | None:
    """Returns the name of a random operation of ours, with its overload; otherwise `None`."""
    target: Any = node.target
    if getattr(target, "namespace", "") != "poptorch_emu":
        return None
    name = target.__name__.removesuffix(".default")
    others = {"dropout", "bernoulli.tensor", "randint", "randperm"}
    return name if name in {*_FILLS, *_OF_TENSORS, *others} else None


def rewrite(
    node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device, call: Call
) -> Any:
    """Computes or writes, by `call`, the operation of `node` on other arguments.

    Args:
        node: a forward operation.
        args: positional arguments in place of the node's.
        kwargs: keyword arguments in place of the node's.
        device: device for tensors that the operation creates.
        call: function that runs or writes an operation.
    """
    name = random_name(node)
    if name is not None:
        return _random(name, tuple(args[2:]), device, call)
    if node.target is STRIDED:
        value, strides = args
        shape = list(node.meta["val"].shape)
        empty = call(aten.new_empty_strided.default, (value, shape, strides), {})
        return call(aten.copy.default, (empty, value), {})
    placed = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    if "device" in placed:
        placed["device"] = device
    moved = tuple(device if isinstance(value, torch.device) else value for value in args)
    target: Any = node.target
    return call(SAFE_TWINS.get(target, target), moved, placed)


def _random(name: str, args: tuple[Any, ...], device: torch.device, call: Call) -> Any:
    if name == "dropout":
        return call(aten.native_dropout.default, (*args, True), {})
    if name == "randint":
        size, dtype, low, high = args
        return call(aten.randint.low, (low, high, size), {"dtype": dtype, "device": device})
    if name == "randperm":
        count, dtype = args
        return call(aten.randperm.default, (count,), {"dtype": dtype, "device": device})
    if name in _OF_TENSORS:
        return call(_OF_TENSORS[name], args, {})
    size, dtype, *others = args
    if name == "bernoulli.tensor":
        drawn = call(aten.bernoulli.default, (*others,), {})
        return call(aten._to_copy.default, (drawn,), {"dtype": dtype})
    empty = call(aten.empty.memory_format, (size,), {"dtype": dtype, "device": device})
    return call(_FILLS[name], (empty, *others), {})


def attention(args: Sequence[Any], kwargs: Mapping[str, Any], call: Call) -> Any:
    """Replaces the CPU's fused attention by the operation that every device has."""
    query, key, value = args[:3]
    dropout_p = args[3] if len(args) > 3 else 0.0
    is_causal = args[4] if len(args) > 4 else False
    mask, scale = kwargs.get("attn_mask"), kwargs.get("scale")
    return call(
        aten.scaled_dot_product_attention.default,
        (query, key, value, mask, dropout_p, is_causal),
        {"scale": scale},
    )


def frozen_norm(args: Sequence[Any], call: Call) -> Any:
    """Writes batch norm with fixed statistics; the first of its results is the value."""
    value, weight, bias, mean, variance, _, momentum, epsilon = args
    return call(
        aten.native_batch_norm.default,
        (value, weight, bias, mean, variance, False, momentum, epsilon),
        {},
    )
