"""Costs of elementwise operations: cycles per element, and the programs that they start.

Source: PopLibs' cycle estimators (`popops`, `popnn`); an addition of float numbers was measured.
"""

from __future__ import annotations

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.tiles import HALF_BYTES, Tiles

# Cycles per element of half and of float numbers.
_RATES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("add", "sub", "mul", "scaled_add", "relu"), (0.75, 1.5)),
    **dict.fromkeys(("add_scalar", "mul_scalar", "neg", "square", "clamp"), (0.5, 1.0)),
    **dict.fromkeys(("relu_grad", "sigmoid_grad", "tanh_grad"), (0.75, 1.5)),
    **dict.fromkeys(("floor", "ceil", "round"), (1.5, 3.0)),
    **dict.fromkeys(("sin", "cos"), (25.0, 2300.0)),
    **dict.fromkeys(("asin", "acos", "atan"), (106.0, 106.0)),
    **dict.fromkeys(("isnan", "isinf", "isfinite"), (2.0, 4.0)),
    "maximum": (1.0, 1.5),
    "div": (5.25, 5.0),
    "compare": (2.25, 3.5),
    "not_equal": (2.75, 5.0),
    "pow": (325.0, 312.0),
    "atan2": (144.0, 136.0),
    "remainder": (75.0, 66.0),
    "bitwise": (7.0, 7.0),
    "abs": (5.0, 5.0),
    "exp": (1.0, 3.0),
    "log": (1.0, 6.0),
    "log1p": (5.5, 11.0),
    "expm1": (2.25, 8.0),
    "tanh": (1.0, 6.0),
    "sigmoid": (1.5, 6.0),
    "sqrt": (5.75, 5.0),
    "rsqrt": (4.75, 4.0),
    "reciprocal": (3.75, 3.0),
    "erf": (13.0, 41.0),
    "gelu": (1.25, 5.0),
    "gelu_grad": (1.25, 5.0),
    "swish": (2.25, 7.5),  # A sigmoid and a product.
    "swish_grad": (2.25, 7.5),  # 9 and 15 cycles of a vector.
    "tan": (5700.0, 5100.0),
    "trunc": (2.75, 1.5),
    "sign": (2.25, 4.5),
    "cast": (0.5, 0.5),
    "cast_integer": (2.0, 2.0),
    "select": (5.0, 5.0),
    "fill": (0.25, 0.5),
    "dropout": (0.5, 1.0),
    # Cycles of the vertex that also computes the loss. Assumed: its gradient alone takes as long.
    "cross_entropy_grad": (4.5, 9.0),
}
_INTEGER_RATES = {"div": 277.0, "remainder": 292.0, "fill": 0.5, "compare": 3.5, "select": 5.0}
_INTEGER_RATE = 7.0
# Assumed cycles per element of an operation that has no model.
_UNKNOWN_RATE = 5.0


def is_modelled(name: str) -> bool:
    """Returns whether the model has the cycles of an operation of this name."""
    return name in _RATES


def elementwise(
    name: str,
    num_elements: int,
    item_bytes: int,
    tiles: Tiles,
    spread_bytes: int = 0,
    is_integer: bool = False,
) -> Cost:
    """Returns the cost of one operation on a tensor.

    Args:
        name: name of the operation; an unknown name costs 5 cycles an element (assumed).
        num_elements: elements of the result.
        item_bytes: size of an element of the operands.
        tiles: tiles that share the work.
        spread_bytes: size of a broadcast operand, which is sent to the tiles.
        is_integer: whether the elements are integers.
    """
    own = tiles.elements(num_elements, item_bytes)
    if is_integer:
        rate = _INTEGER_RATES.get(name, _INTEGER_RATE)
    else:
        half, full = _RATES.get(name, (_UNKNOWN_RATE, _UNKNOWN_RATE))
        rate = half if item_bytes <= HALF_BYTES else full
    received = min(spread_bytes, own * item_bytes)
    evidence = Evidence.SOURCE if name in _RATES else Evidence.ASSUMED
    return tiles.cost(own * rate, 1, received, evidence)
