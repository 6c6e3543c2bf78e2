"""Checks values against one computation in float32, which is enough for most of them.

A value that passes here is within the bound of `rounding` of the exact result, because magnitudes
here are no larger than there, and half of the bound is left for the error of PyTorch's own result.
(Assumed: PyTorch adds in several parts, so that its error is far smaller.) A value that fails here
may still be correct.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from poptorch_emu.numbers.graph_values import kind_of
from poptorch_emu.numbers.magnitudes import HALF_TYPES, is_finite
from poptorch_emu.numbers.rounding import (
    ACTIVATIONS,
    ELEMENTWISE_ROUNDINGS,
    EXACT,
    MATRICES,
    PRODUCTS,
    SUMS,
    gamma,
    is_float,
    longest,
    num_terms_of_matrices,
    on_floats,
    results_of,
    sum_of_ones,
    unit_roundoff,
)
from poptorch_emu.torch_versions import OpOverload, pytree

_UNIT = unit_roundoff(torch.float32)
# Number of terms of a matrix product that serve as a sample of all terms.
_NUM_TERMS_READ = 32
# Relative change of the arguments, large enough that float32 shows its effect to two digits.
_STEP = 2.0**-10


class Float32Results:
    """An operation computed in float32."""

    def __init__(self, target: OpOverload, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Runs the operation.

        Args:
            target: operator of a graph.
            args: positional arguments, with tensors of any type except float64.
            kwargs: keyword arguments, with tensors of the same types.

        Raises:
            Exception: PyTorch cannot run the operator in float32.
        """
        self._target, self._kind = target, kind_of(target)
        self._arguments = pytree.tree_map(_in_float32, (tuple(args), dict(kwargs)))
        self._results = results_of(self._target, self._arguments)
        self._moved: list[Any] | None = None

    def explains(self, result: int, tensor: torch.Tensor) -> bool:
        """Returns whether rounding surely explains a value's difference from the float32 result."""
        made = self._results[result]
        if made is None or made.shape != tensor.shape:
            return False
        if not tensor.is_floating_point():
            return torch.equal(made, tensor.to(made.dtype))
        if torch.equal(made, tensor):
            return is_finite(tensor)
        if tensor.dtype is torch.float64 or self._kind in EXACT:
            return False
        off, size = (tensor - made).abs_(), made.abs()
        # A half-precision result has one more rounding than the float32 result here.
        last = unit_roundoff(tensor.dtype) * (1 - 2.0**-8) if tensor.dtype in HALF_TYPES else 0.0
        factor = gamma(self._num_terms(), _UNIT) / 2
        if bool((off <= (factor + last) * size).all()):
            return True
        return any(
            bool((off <= factor * more + last * size).all()) for more in self._magnitudes(result)
        )

    def _num_terms(self) -> int:
        if self._kind in MATRICES:
            return num_terms_of_matrices(self._arguments[0])
        if self._kind == "sum":
            read: torch.Tensor = self._arguments[0][0]
            return int(max(1, read.numel() // max(1, self._results[0].numel())))
        is_mean = self._kind == "mean" or "avg_pool" in self._kind
        if self._kind in PRODUCTS or (self._kind in SUMS and not is_mean):
            return int(sum_of_ones(self._target, self._arguments))
        if torch.Tag.pointwise in self._target.tags:
            return ELEMENTWISE_ROUNDINGS
        return longest(self._arguments, self._results)

    def _magnitudes(self, result: int) -> Iterator[torch.Tensor]:
        """Yields lower bounds of the sum of the magnitudes of all terms, the cheapest first."""
        args, kwargs = self._arguments
        if self._kind in MATRICES and len(args) < 4 and not kwargs:
            left, right = args[-2:]
            every = max(1, left.size(-1) // _NUM_TERMS_READ)
            yield torch.matmul(left[..., ::every].abs(), right[..., ::every, :].abs())
        if self._kind in PRODUCTS or self._kind in SUMS:
            yield results_of(self._target, on_floats(torch.abs, self._arguments))[result].abs()
            return
        size: torch.Tensor = self._results[result].abs()
        if torch.Tag.pointwise not in self._target.tags:
            yield size + self._changes()[result]
        elif self._kind in ACTIVATIONS:
            leaves = filter(is_float, pytree.tree_leaves((args, kwargs)))
            yield size + sum(leaf.abs() for leaf in leaves)

    def _changes(self) -> list[Any]:
        """Returns the effect of a relative change of the arguments on each row of the results."""
        if self._moved is None:
            generator = torch.Generator().manual_seed(0)

            def moved(value: Any) -> Any:
                if not is_float(value):
                    return value
                signs = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.int8)
                return value * (1 + _STEP * (signs * 2 - 1))

            after = results_of(self._target, pytree.tree_map(moved, self._arguments))
            self._moved = [
                None if made is None else _by_row((new - made).abs_() / _STEP)
                for new, made in zip(after, self._results, strict=True)
            ]
        return self._moved


def _in_float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in HALF_TYPES:
        return value.float()
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF_TYPES else value


def _by_row(value: torch.Tensor) -> torch.Tensor:
    return value.amax(-1, keepdim=True) if value.dim() and value.numel() else value
