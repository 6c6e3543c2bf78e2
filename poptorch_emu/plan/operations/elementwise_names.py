"""Names of the programs of elementwise operators, as the machine's costs spell them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.graph import tensors_of
from poptorch_emu.plan.operations.operation_family import bare_name, operands_of

# PyTorch's operators whose programs have other names, or that consist of several programs.
_PROGRAMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("rsub",), ("sub",)),
    **dict.fromkeys(("eq", "lt", "le", "gt", "ge"), ("compare",)),
    **dict.fromkeys(("where", "masked_fill", "triu", "tril"), ("select",)),
    # Constants are computed when the model is compiled, so they run no program.
    **dict.fromkeys(
        ("full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "new_zeros", "new_ones",
         "new_full", "new_empty", "empty", "empty_like", "arange", "scalar_tensor", "eye", "iota",
         "detach", "lift_fresh"),
        (),
    ),
    "one_hot": ("fill",),
    **dict.fromkeys(("clamp_min", "clamp_max", "hardtanh", "leaky_relu", "prelu"), ("clamp",)),
    **dict.fromkeys(("minimum", "fmax", "fmin"), ("maximum",)),
    **dict.fromkeys(("logical_not", "bitwise_not", "logical_and", "logical_or", "logical_xor",
                     "bitwise_and", "bitwise_or", "bitwise_xor"), ("compare",)),
    "fmod": ("remainder",),
    "floor_divide": ("div", "floor"),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__"),
                    ("bitwise",)),
    **dict.fromkeys(("hardtanh_backward", "leaky_relu_backward", "threshold_backward",
                     "elu_backward", "prelu_kernel_backward"), ("relu_grad",)),
    **dict.fromkeys(("erfc", "erfinv"), ("erf",)),
    **dict.fromkeys(("exp2", "sinh", "cosh"), ("exp",)),
    **dict.fromkeys(("log2", "log10"), ("log",)),
    **dict.fromkeys(("silu", "mish", "hardswish"), ("swish",)),
    **dict.fromkeys(("silu_backward", "mish_backward", "hardswish_backward"), ("swish_grad",)),
    "ne": ("not_equal",),
    "neg": ("neg",),
    "abs": ("abs",),
    "sgn": ("sign",),
    "lerp": ("sub", "scaled_add"),
    "addcmul": ("mul", "scaled_add"),
    "addcdiv": ("div", "scaled_add"),
    "elu": ("exp", "select"),
    "softplus": ("exp", "log1p"),
    "softplus_backward": ("sigmoid_grad",),
    "log_sigmoid_forward": ("exp", "log1p"),
    "log_sigmoid_backward": ("sigmoid_grad",),
    "hardsigmoid": ("clamp",),
    "hardsigmoid_backward": ("relu_grad",),
    "sigmoid_backward": ("sigmoid_grad",),
    "tanh_backward": ("tanh_grad",),
    "gelu_backward": ("gelu_grad",),
    "native_dropout_backward": ("dropout",),
    "acosh": ("log", "sqrt"),
    "asinh": ("log", "sqrt"),
    "atanh": ("log1p", "log1p"),
    "mse_loss": ("sub", "square"),
    "mse_loss_backward": ("sub", "mul_scalar"),
    "smooth_l1_loss": ("sub", "abs", "select"),
    "smooth_l1_loss_backward": ("sub", "clamp"),
    # A distance runs its programs on each element of each pair of rows, and stores none of them.
    "_cdist_forward": ("sub", "abs", "scaled_add"),
    "_cdist_backward": ("sub", "sign", "scaled_add"),
    "glu": ("sigmoid", "mul"),
    "glu_backward": ("sigmoid", "mul", "mul", "mul"),
}  # fmt: skip
_OF_POWER = {2: ("square",), 0.5: ("sqrt",), -0.5: ("rsqrt",), -1: ("reciprocal",), 1: (),
             3: ("square", "mul"), -2: ("square", "reciprocal")}  # fmt: skip
_WITH_SCALAR = {"add": "add_scalar", "sub": "add_scalar", "mul": "mul_scalar", "div": "mul_scalar"}
# Operators that run another program on integers. On bool they are comparisons (`_PROGRAMS`).
_OF_INTEGERS = {
    "floor_divide": ("div",),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), ("bitwise",)),
}


def programs_of(node: fx.Node) -> tuple[str, ...]:
    """Returns the programs of an elementwise operation, in order.

    A floating-point division by a scalar is a multiplication (assumed); an integer division is not.
    """
    name = bare_name(node)
    names = _PROGRAMS.get(name, (name,))
    if name == "pow":
        exponent: Any = node.args[1]
        names = _OF_POWER.get(exponent, names) if isinstance(exponent, (int, float)) else names
    operands = operands_of(node)
    if computes_integers(node):
        is_truth = any(operand.dtype is torch.bool for operand in operands)
        return names if is_truth else _OF_INTEGERS.get(name, names)
    if name == "div" and node.kwargs.get("rounding_mode") is not None:
        names = ("div", "floor")
    if sum(operand.dim() > 0 for operand in operands) < 2:
        names = tuple(_WITH_SCALAR.get(part, part) for part in names)
    return names


def computes_integers(node: fx.Node) -> bool:
    """Returns whether neither operands nor results of an operation are floating-point."""
    values = tensors_of([node, *node.all_input_nodes])
    return not any(value.is_floating_point() for value in values)
