"""Finds the family of programs of each operation, for the model of the machine."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.graph import tensors_of
from poptorch_emu.ir.marks import IS_WIDENED, IS_WIDENING
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.machine.costs.code import Family
from poptorch_emu.torch_versions import OpOverload

# Families by operator without overload; `operation_products.py` reads the products' arguments.
_FAMILY_OF_NAME = {
    **dict.fromkeys(
        ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot"), Family.PRODUCT
    ),
    **dict.fromkeys(("convolution", "convolution_backward"), Family.CONVOLUTION),
    **dict.fromkeys(("rnn_layer", "rnn_layer_backward"), Family.RECURRENT),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
        ),
        Family.ATTENTION,
    ),
    "sum": Family.REDUCTION,
    **dict.fromkeys(("all_gather", "all_reduce", "all_to_all"), Family.COLLECTIVE),
    "own_piece": Family.COPY,
    **dict.fromkeys(("cat", "stack"), Family.COPY),
}

# Families of further operators, by the beginnings of their names.
_FAMILY_OF_PREFIX = {
    "_softmax": Family.SOFTMAX,
    "_log_softmax": Family.SOFTMAX,
    "_safe_softmax": Family.SOFTMAX,
    "native_layer_norm": Family.NORM,
    "native_group_norm": Family.NORM,
    "native_batch_norm": Family.NORM,
    "_native_batch_norm": Family.NORM,
    "nll_loss": Family.LOSS,
    "ctc_": Family.LOSS,
    "_ctc_loss": Family.LOSS,
    "embedding": Family.GATHER,
    "index": Family.GATHER,
    "gather": Family.GATHER,
    "scatter": Family.GATHER,
    "take": Family.GATHER,
    "topk": Family.SORT,
    "sort": Family.SORT,
    "kthvalue": Family.SORT,
    "median": Family.SORT,
    "argmax": Family.SORT,
    "argmin": Family.SORT,
    "mean": Family.REDUCTION,
    "cumsum": Family.REDUCTION,
    "max_pool": Family.POOL,
    "avg_pool": Family.POOL,
    "_adaptive_avg_pool": Family.POOL,
    "adaptive_": Family.POOL,
    "upsample": Family.POOL,
    "_to_copy": Family.CAST,
    "clone": Family.COPY,
    "constant_pad": Family.COPY,
    "repeat": Family.COPY,
    "flip": Family.COPY,
    "roll": Family.COPY,
    "slice": Family.COPY,
    "select": Family.COPY,
    "as_strided": Family.COPY,
}
_NAMESPACES = ("aten", "poptorch_emu")


def family_of(node: fx.Node) -> Family:
    """Returns the family of an operation. An unknown operation counts as elementwise."""
    if IS_WIDENING in node.meta:
        return Family.VIEW
    family = _family_of_target(node.target)
    if family is not None:
        return family
    shapes = {value.shape for value in tensors_of(node.all_input_nodes) if value.dim()}
    return Family.BROADCAST if len(shapes) > 1 else Family.ELEMENTWISE


@cache
def _family_of_target(target: OpOverload) -> Family | None:
    """Returns the family of an operator; None if the shapes of the operands decide."""
    if traits_of(target).is_view:
        return Family.VIEW
    if target.namespace in _NAMESPACES:
        name = _bare_name(target)
        if target.namespace == "poptorch_emu" and _draws(target):
            return Family.RANDOM
        if name in _FAMILY_OF_NAME:
            return _FAMILY_OF_NAME[name]
        for prefix, family in _FAMILY_OF_PREFIX.items():
            if name.startswith(prefix):
                return family
    return Family.REDUCTION if torch.Tag.reduction in target.tags else None


def bare_name(node: fx.Node) -> str:
    """Returns the name of an operator without namespace and overload."""
    return _bare_name(node.target)


@cache
def _bare_name(target: OpOverload) -> str:
    return str(target._schema.name).rpartition("::")[2]


def item_bytes(node: fx.Node, value: torch.Tensor) -> int:
    """Returns the bytes of an element on an IPU, where 64-bit types become 32-bit ones."""
    if IS_WIDENED in node.meta and value.is_floating_point():
        return torch.half.itemsize
    return min(value.itemsize, torch.float.itemsize)


def operands_of(node: fx.Node) -> list[torch.Tensor]:
    """Returns the tensors among a node's positional arguments, in order."""
    return [value.meta["val"] for value in node.args if isinstance(value, fx.Node)]


def query_and_key(node: fx.Node) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns query and key of an attention; its backward has them after the gradient."""
    first = 1 if "backward" in bare_name(node) else 0
    query, key = operands_of(node)[first : first + 2]
    return query, key


def recurrent_operands(node: fx.Node) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the sequence, (steps, rows, features), and the weights of inputs and of the state.

    The sequence is the argument before the lists of states and weights.
    """
    arguments: Any = node.args
    first = next(index for index, item in enumerate(arguments) if isinstance(item, (list, tuple)))
    sequence, (input_weight, hidden_weight) = arguments[first - 1], arguments[first + 1][:2]
    return sequence.meta["val"], input_weight.meta["val"], hidden_weight.meta["val"]


def _draws(target: OpOverload) -> bool:
    arguments = target._schema.arguments
    return bool(arguments) and arguments[0].name == "rng"
