"""Raw operators of TensorFlow that compute each element separately."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from poptorch_emu.keras.tensorflow.functions.raw_call import RawCall, Row, plain

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def _sign(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x) if x.is_floating_point() else x


# For equal elements, TensorFlow gives the gradient to the first operand.
def _maximum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where((x >= y) | torch.isnan(x), x, y)


def _minimum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where((x <= y) | torch.isnan(x), x, y)


def _div_no_nan(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    quotient = x / torch.where(y == 0, torch.ones_like(y), y)
    return torch.where(y == 0, torch.zeros_like(quotient), quotient)


def _mul_no_nan(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    finite = torch.where(torch.isfinite(x), x, torch.zeros_like(x)).detach()
    return torch.where(y == 0, finite, x) * y  # The gradient of y is x, even where y is 0.


def _zero_where_x_is(compute: Callable[..., torch.Tensor], neutral: float) -> Row:
    """Returns the row of a function of x and y that is 0 where x is 0, for any y.

    Args:
        compute: function of x and y for the other elements.
        neutral: value in place of y where x is 0, so that the function is finite there.
    """

    def compute_others(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = compute(x, torch.where(x == 0, torch.full_like(y, neutral), y))
        return torch.where(x == 0, torch.zeros_like(found), found)

    return plain(compute_others)


def _divide(rounding: str) -> Row:
    def divide(call: RawCall, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        is_float = x.is_floating_point()
        if is_float and rounding == "floor":
            return torch.floor(x.detach() / y.detach())
        return torch.div(x, y, rounding_mode=rounding)

    return Row(divide)


def _div(call: RawCall, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _pow(call: RawCall, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point():
        raise call.refuse("of integers", "Cast them with tf.cast(x, tf.float32)")
    # TensorFlow's exponent has no gradient where the base is not positive.
    return torch.pow(x, torch.where(x > 0, y, y.detach()))


def _select(call: RawCall, condition: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if call.op.type == "Select" and condition.dim() < x.dim():
        condition = condition.reshape([*condition.shape, *[1] * (x.dim() - condition.dim())])
    return torch.where(condition, x, y)


def _relu6(x: torch.Tensor) -> torch.Tensor:
    return F.relu6(x) if x.is_floating_point() else torch.clamp(x, 0, 6)


def _selu(x: torch.Tensor) -> torch.Tensor:
    """At 0 TensorFlow's slope is that of positive numbers."""
    curve = _SELU_ALPHA * torch.expm1(torch.clamp(x, max=0))
    return _SELU_SCALE * torch.where(x < 0, curve, x)


def _digamma(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == 0, torch.full_like(x, torch.nan), torch.digamma(x))


def _next_after(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # A step in each direction has the gradient of x.
    return torch.nextafter(x.detach(), y.detach()) + _nothing(x)


def _nothing(x: torch.Tensor) -> torch.Tensor:
    """Returns 0 with the gradient of x."""
    return torch.where(torch.isfinite(x), x - x.detach(), torch.zeros_like(x))


def _clip(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return _maximum(_minimum(x, high), low)


_UNARY = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin,
    "Asinh": torch.asinh, "Atan": torch.atan, "Atanh": torch.atanh, "Ceil": torch.ceil,
    "Cos": torch.cos, "Cosh": torch.cosh, "Digamma": _digamma, "Elu": F.elu, "Erf": torch.erf,
    "Erfc": torch.erfc, "Erfinv": torch.erfinv, "Exp": torch.exp, "Expm1": torch.expm1,
    "Floor": torch.floor, "Inv": torch.reciprocal, "Invert": torch.bitwise_not,
    "IsFinite": torch.isfinite, "IsInf": torch.isinf, "IsNan": torch.isnan, "Lgamma": torch.lgamma,
    "Log": torch.log, "Log1p": torch.log1p, "LogicalNot": torch.logical_not,
    "Ndtri": torch.special.ndtri, "Neg": torch.neg, "OnesLike": torch.ones_like,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Relu6": _relu6, "Rint": torch.round,
    "Round": _rounded, "Rsqrt": torch.rsqrt, "Selu": _selu, "Sigmoid": torch.sigmoid, "Sign": _sign,
    "Sin": torch.sin, "Sinh": torch.sinh, "Softplus": partial(F.softplus, threshold=40.0),
    "Softsign": F.softsign, "Sqrt": torch.sqrt, "Square": torch.square,
    "StopGradient": torch.detach, "Tan": torch.tan, "Tanh": torch.tanh,
    "ZerosLike": torch.zeros_like,
}  # fmt: skip
_BINARY = {
    "Add": torch.add, "AddV2": torch.add, "Atan2": torch.atan2, "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor, "DivNoNan": _div_no_nan,
    "Equal": torch.eq, "FloorMod": torch.remainder, "Greater": torch.gt, "GreaterEqual": torch.ge,
    "Less": torch.lt, "LessEqual": torch.le, "LogicalAnd": torch.logical_and,
    "LogicalOr": torch.logical_or, "Maximum": _maximum, "Minimum": _minimum, "Mul": torch.mul,
    "MulNoNan": _mul_no_nan, "NextAfter": _next_after, "NotEqual": torch.ne,
    "RealDiv": torch.true_divide, "SquaredDifference": lambda x, y: torch.square(x - y),
    "Sub": torch.sub, "TruncateMod": torch.fmod, "ClipByValue": _clip,
}  # fmt: skip


ROWS = {
    "AddN": plain(lambda *inputs: reduce(torch.add, inputs)),
    **{name: plain(function) for name, function in {**_UNARY, **_BINARY}.items()},
    "Cast": Row(lambda call, x: x.to(call.type_of_output())),
    "Div": Row(_div),
    "FloorDiv": _divide("floor"),
    "LeakyRelu": Row(lambda call, x: torch.where(x > 0, x, x * call.attr("alpha"))),
    "Pow": Row(_pow),
    "Select": Row(_select),
    "SelectV2": Row(_select),
    "TruncateDiv": _divide("trunc"),
    "Xdivy": _zero_where_x_is(torch.true_divide, 1),
    "Xlog1py": _zero_where_x_is(lambda x, y: x * torch.log1p(y), 0),
    "Xlogy": _zero_where_x_is(lambda x, y: x * torch.log(y), 1),
}
