"""Matrix products that an IPU computes piece by piece."""

from __future__ import annotations

from typing import Any

from keras import ops

__all__ = ["serialized_matmul"]

# For each dimension, (factor, axis) that is cut, after any transposition.
_CUT = {"a_columns": (0, -2), "a_rows_b_columns": (0, -1), "b_rows": (1, -1)}


def serialized_matmul(
    a: Any,
    b: Any,
    serialization_factor: int,
    serialization_dimension: str,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> Any:
    """Returns the product of two matrices (exact).

    Args:
        a: left matrix.
        b: right matrix.
        serialization_factor: accepted, if it divides the dimension.
        serialization_dimension: "a_columns", "a_rows_b_columns" or "b_rows".
        transpose_a: whether `a` is transposed first.
        transpose_b: whether `b` is transposed first.
        name: accepted.

    Raises:
        ValueError: the dimension does not exist, or `serialization_factor` does not divide it.
    """
    factors = [_transposed(a) if transpose_a else a, _transposed(b) if transpose_b else b]
    if serialization_dimension not in _CUT:
        raise ValueError(
            f"serialization_dimension must be one of {sorted(_CUT)}, not "
            f"{serialization_dimension!r}."
        )
    number, axis = _CUT[serialization_dimension]
    size = factors[number].shape[axis]
    if serialization_factor < 1 or (size is not None and size % serialization_factor):
        raise ValueError(
            f"serialization_factor={serialization_factor} does not divide "
            f"{serialization_dimension}, which is {size}. Choose one that does."
        )
    return ops.matmul(*factors)


def _transposed(matrix: Any) -> Any:
    return ops.swapaxes(matrix, -1, -2)
