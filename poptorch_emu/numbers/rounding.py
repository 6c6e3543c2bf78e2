"""Bounds on the distance between the computed result of an operation and the exact one.

With unit roundoff u, a sum of n terms in any order differs from the exact sum by at most gamma(n) =
n u / (1 - n u), times the sum of the magnitudes of its terms. Source: Higham, Accuracy and
Stability of Numerical Algorithms, 2nd edition, section 3.1 and 4.2.

* Products of matrices, convolutions and sums: this bound. Running the operation on ones gives n,
  and running it on magnitudes gives the sum of the magnitudes.
* Elementwise functions: n = 8, with each argument's magnitude times the derivative.
* Others, such as a softmax or a norm: n is the longest axis that they reduce. The effect of a
  relative error of each argument is measured, with signs drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from poptorch_emu.ir.evaluate import run_on_host
from poptorch_emu.numbers.graph_values import kind_of
from poptorch_emu.numbers.magnitudes import HALF_TYPES
from poptorch_emu.torch_versions import OpOverload, pytree

Tensors = list[Any]

PRODUCTS = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear", "matmul", "outer", "addbmm",
    "convolution", "convolution_backward",
})  # fmt: skip
# Operators whose shapes tell how many terms a sum has. With three arguments the first is an addend.
MATRICES = frozenset({"mm", "addmm", "bmm", "baddbmm"})
SUMS = frozenset({
    "sum", "mean", "cumsum", "embedding_dense_backward", "index_add", "scatter_add", "nansum",
    "avg_pool2d", "avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
    "max_pool2d_with_indices_backward", "index_put", "slice_backward", "select_backward",
})  # fmt: skip
# Operators that only select, copy or negate numbers, so that they round nothing.
EXACT = frozenset({
    "relu", "threshold_backward", "embedding", "index", "index_select", "gather", "cat", "stack",
    "where", "max_pool2d_with_indices", "neg", "abs", "clone", "copy", "_to_copy", "masked_fill",
    "constant_pad_nd", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "sign", "full",
    "full_like", "zeros", "zeros_like", "ones", "ones_like", "scatter", "slice_scatter",
    "select_scatter", "amax", "amin", "max", "min", "sort", "topk", "flip", "roll", "repeat",
    "max_pool2d", "arange", "bernoulli", "randint", "_unsafe_view", "hardtanh", "fill", "tril",
    "triu", "_softmax_backward_mask", "max_pool1d", "argmax", "argmin",
})  # fmt: skip
# Functions that PyTorch computes by subtraction: a small result has the error of large terms.
ACTIVATIONS = frozenset({
    "gelu", "gelu_backward", "silu", "silu_backward", "elu", "elu_backward", "mish",
    "mish_backward", "softplus", "softplus_backward", "hardswish", "hardswish_backward",
    "log_sigmoid_forward", "log_sigmoid_backward", "tanh_backward", "sigmoid_backward", "expm1",
    "log1p", "erf", "sin", "cos", "logit",
})  # fmt: skip

# Assumed: a function of a mathematical library is off by 4 units of the last place at most.
ELEMENTWISE_ROUNDINGS = 8
_NUM_SAMPLES = 3
_STEP = 2.0**-20


def unit_roundoff(dtype: torch.dtype) -> float:
    """Returns the largest relative error of rounding to a type."""
    return torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0  # Integers are exact.


def underflow(dtype: torch.dtype) -> float:
    """Returns the largest error of a number near zero: the distance of two subnormal numbers."""
    if not dtype.is_floating_point:
        return 0.0
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def gamma(num_terms: int, unit: float) -> float:
    """Returns the bound of the relative error of a sum; infinity if it has no bound."""
    product = num_terms * unit
    return product / (1 - product) if product < 1 else math.inf


def likely_gamma(num_terms: int, unit: float) -> float:
    """Returns a bound that a sum in a short type hardly ever exceeds, for roundings of any sign.

    Source: Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis (2019), with
    lambda = 6.
    """
    return min(gamma(num_terms, unit), 6 * math.sqrt(num_terms) * unit)


def results_of(target: OpOverload, arguments: Any) -> Tensors:
    """Runs an operation on a tuple and a mapping of arguments, without gradients."""
    args, kwargs = arguments
    with torch.no_grad():
        result = run_on_host(target, args, kwargs)
    return list(result) if isinstance(result, (tuple, list)) else [result]


@dataclass(frozen=True)
class Bound:
    """The largest distance of each element of a tensor from the exact result.

    Attributes:
        tight: bound if sums are in float32, or in the value's own type if that is wider.
        loose: bound if sums are in the short type; the same as `tight` if no type is short.
    """

    tight: torch.Tensor
    loose: torch.Tensor


class Exact:
    """An operation computed in float64, with bounds for the effect of rounding."""

    def __init__(self, target: OpOverload, args: Any, kwargs: Any) -> None:
        """Runs the operation.

        Args:
            target: operator of a graph.
            args: positional arguments; tensors of any floating-point type, which are widened.
            kwargs: keyword arguments, with tensors of the same kinds.

        Raises:
            Exception: PyTorch cannot run the operator in float64.
        """
        self._target = target
        self._arguments = widened((tuple(args), dict(kwargs)))
        self.results = results_of(self._target, self._arguments)
        self._scales: Tensors | None = None
        self._num_terms = 0

    def bound(self, result: int, dtype: torch.dtype, short: torch.dtype | None) -> Bound:
        """Returns the bound for a floating-point result.

        Args:
            result: index of the result.
            dtype: type of the run's value.
            short: 16-bit type of the result or of an argument; `None` if none of them has 16 bits.
        """
        if self._scales is None:
            self._scales, self._num_terms = self._measured()
        exact, scale = self.results[result].abs().nan_to_num(), self._scales[result]
        adds_in = torch.float32 if dtype in HALF_TYPES else dtype
        tight = gamma(self._num_terms, unit_roundoff(adds_in)) * scale
        if dtype in HALF_TYPES:
            tight += unit_roundoff(dtype) * exact
        if self._num_terms or dtype in HALF_TYPES:
            tight += underflow(dtype)
        if short is None:
            return Bound(tight, tight)
        factor = likely_gamma(self._num_terms + 1, unit_roundoff(short))
        loose = factor * (scale + exact) + self._num_terms * underflow(short)
        return Bound(tight, tight + loose)

    def spread(self, slack: Sequence[tuple[int, torch.Tensor]]) -> Tensors:
        """Returns how much the results change when arguments change by as much as `slack` says.

        Args:
            slack: (index among all tensor arguments, largest error of each element).
        """
        by_number = dict(slack)

        def shifted(number: int, value: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
            return value + signs * by_number[number] if number in by_number else value

        return self._changes(shifted)

    def _measured(self) -> tuple[Tensors, int]:
        kind = kind_of(self._target)
        if kind in EXACT:
            return [_zeros(each) for each in self.results], 0
        if kind in PRODUCTS or kind in SUMS:
            return self._of_sums(kind)
        if torch.Tag.pointwise in self._target.tags:
            return self._of_elements(kind), ELEMENTWISE_ROUNDINGS
        changes = self._changes(lambda _, value, signs: value * (1 + _STEP * signs))
        pairs = zip(self.results, changes, strict=True)
        scales = [None if e is None else c / _STEP + _magnitude(e) for e, c in pairs]
        return scales, longest(self._arguments, self.results)

    def _of_sums(self, kind: str) -> tuple[Tensors, int]:
        magnitudes = results_of(self._target, on_floats(torch.abs, self._arguments))
        if kind in MATRICES:
            return magnitudes, num_terms_of_matrices(self._arguments[0])
        if kind == "mean" or "avg_pool" in kind:
            return magnitudes, longest(self._arguments, self.results)
        return magnitudes, math.ceil(sum_of_ones(self._target, self._arguments)) + 1

    def _of_elements(self, kind: str) -> Tensors:
        scales = [_magnitude(each) for each in self.results]
        leaves, spec = pytree.tree_flatten(self._arguments)
        for position, leaf in enumerate(leaves):
            if not is_float(leaf):
                continue
            moved = [*leaves]
            moved[position] = leaf * (1 + _STEP)
            changed = results_of(self._target, pytree.tree_unflatten(moved, spec))
            for number, (after, before) in enumerate(zip(changed, self.results, strict=True)):
                if is_float(after):
                    scales[number] = scales[number] + _difference(after, before) / _STEP
                    if kind in ACTIVATIONS:
                        scales[number] = scales[number] + leaf.abs().nan_to_num()
        return scales

    def _changes(
        self, change: Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> Tensors:
        """Returns the largest change in each row of the results if `change` moves arguments."""
        generator = torch.Generator().manual_seed(0)
        changes = [_zeros(each) for each in self.results]
        leaves, spec = pytree.tree_flatten(self._arguments)
        for _ in range(_NUM_SAMPLES):
            moved, number = [], 0
            for leaf in leaves:
                if isinstance(leaf, torch.Tensor):
                    if is_float(leaf):
                        signs = torch.randint(0, 2, leaf.shape, generator=generator) * 2.0 - 1.0
                        leaf = change(number, leaf, signs.double())
                    number += 1
                moved.append(leaf)
            changed = results_of(self._target, pytree.tree_unflatten(moved, spec))
            for index, after in enumerate(changed):
                if is_float(after):
                    difference = _by_row(_difference(after, self.results[index]))
                    changes[index] = torch.maximum(changes[index], difference)
        return changes


def num_terms_of_matrices(args: Sequence[Any]) -> int:
    """Returns how many terms a product of matrices sums; an addend counts as one."""
    is_added_to = len(args) > 2
    return int(args[1 if is_added_to else 0].size(-1)) + is_added_to + 1


def sum_of_ones(target: OpOverload, arguments: Any) -> float:
    """Returns how many terms an operation sums: its largest result on ones."""
    counts = results_of(target, on_floats(torch.ones_like, arguments))
    largest = [c.abs().max().item() for c in counts if is_float(c) and c.numel()]
    return max(largest, default=1.0)


def longest(arguments: Any, results: Tensors) -> int:
    """Returns an upper estimate of the terms in the longest sum of an operation."""
    tensors = [v for v in pytree.tree_leaves(arguments) if isinstance(v, torch.Tensor)]
    axes = [size for tensor in tensors for size in tensor.shape]
    read = max((tensor.numel() for tensor in tensors), default=1)
    made = min((r.numel() for r in results if is_float(r) and r.numel()), default=read)
    return max(max(axes, default=1), read // made) + ELEMENTWISE_ROUNDINGS


def widened(arguments: Any) -> Any:
    """Returns arguments with all floating-point types replaced by float64."""
    return pytree.tree_map(_wide, arguments)


def _wide(value: Any) -> Any:
    if is_float(value):
        return value.detach().double()
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def is_float(value: Any) -> bool:
    """Returns whether a value is a floating-point tensor."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def on_floats(function: Callable[[torch.Tensor], torch.Tensor], values: Any) -> Any:
    """Returns arguments with `function` applied to each floating-point tensor."""
    return pytree.tree_map(lambda value: function(value) if is_float(value) else value, values)


def _zeros(value: Any) -> Any:
    return torch.zeros_like(value) if is_float(value) else None


def _magnitude(value: Any) -> Any:
    return value.abs().nan_to_num() if is_float(value) else None


def _difference(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    return (after - before).abs().nan_to_num(0.0, 0.0, 0.0)


def _by_row(value: torch.Tensor) -> torch.Tensor:
    """Repeats the largest number of each row, since one draw of signs may cancel in an element."""
    if value.dim() == 0 or value.numel() == 0:
        return value
    return value.amax(-1, keepdim=True).expand(value.shape)
