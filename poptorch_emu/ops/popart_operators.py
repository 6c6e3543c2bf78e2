"""Operators of PopART that `custom_op` finds, if PyTorch can compute them.

Source: the ONNX operator set 11 for domain "ai.onnx"; for "ai.graphcore" the names, attributes and
defaults of PopART's operator documentation. The result of `ScatterReduce` at a position without an
input is assumed: 0, or 1 for a product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from poptorch_emu.errors import compiler_error
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.ops.named.collectives import all_reduce_without_gradient
from poptorch_emu.structure import as_list
from poptorch_emu.torch_versions import DisableTorchFunction, nll_loss_nd
from poptorch_emu.trace.operators.scatter_operators import SCATTER_OPERATORS

Attributes = Mapping[str, Any]
# Names in the order of PopART's enumeration, with PyTorch's numbers as values.
_REDUCTIONS = {"sum": 2, "mean": 1, "noreduction": 0}
_SCATTERS = ("sum", "max", "min", "mul")


@dataclass(frozen=True)
class PopartOperator:
    """The function that computes an operator, and the operator's attributes.

    Attributes:
        run: function of the inputs and all attributes that returns one or more tensors.
        defaults: default of each attribute by name; `None` if the attribute must be given.
    """

    run: Callable[[Sequence[torch.Tensor], Attributes], Any]
    defaults: Mapping[str, Any]

    def __call__(self, *inputs: torch.Tensor, **given: Any) -> list[torch.Tensor]:
        """Returns the results of the operator as a list.

        Raises:
            Error: an attribute is unknown or missing.
        """
        values = {**self.defaults, **given}
        missing = [name for name, value in values.items() if value is None]
        unknown = sorted(given.keys() - self.defaults.keys())
        if unknown or missing:
            raise compiler_error(
                f"This operator of PopART has the attributes {sorted(self.defaults)}, but was "
                f"given {sorted(given)}. Unknown are {unknown}; missing are {missing}."
                f"{''.join(did_you_mean(name, self.defaults) for name in unknown)}"
            )
        try:
            return as_list(self.run(inputs, values))
        except (IndexError, TypeError, ValueError) as cause:
            raise compiler_error(
                f"This operator of PopART does not take these {len(inputs)} inputs: {cause}"
            ) from cause


def _plain(function: Callable[..., Any]) -> PopartOperator:
    return PopartOperator(lambda inputs, _: function(*inputs), {})


def _with(
    run: Callable[[Sequence[torch.Tensor], Attributes], Any], **defaults: Any
) -> PopartOperator:
    return PopartOperator(run, defaults)


def _reduction(value: str | int) -> int:
    """Returns PyTorch's number of a reduction that is given by name or by PopART's number."""
    names = list(_REDUCTIONS)
    name = names[value] if isinstance(value, int) and 0 <= value < len(names) else str(value)
    if name.lower() not in _REDUCTIONS:
        raise compiler_error(
            f"The attribute 'reduction' is {value!r}; choose 'Sum', 'Mean' or 'NoReduction'."
        )
    return _REDUCTIONS[name.lower()]


def _reduce(values: torch.Tensor, reduction: str | int) -> torch.Tensor:
    kind = _reduction(reduction)
    if kind == _REDUCTIONS["noreduction"]:
        return values
    return values.mean() if kind == _REDUCTIONS["mean"] else values.sum()


def _l1(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    return _reduce(inputs[0].abs() * given["lambda"], given["reduction"])


def _nll_loss(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Computes the loss below the tracer's hooks, which would mark it as the model's loss."""
    probabilities, labels = inputs
    log_p = probabilities if given["inputIsLogProbability"] else probabilities.log()
    loss: Callable[..., torch.Tensor] = nll_loss_nd
    reduction, ignored = _reduction(given["reduction"]), given["ignoreIndex"]
    with DisableTorchFunction():
        return loss(log_p, labels.long(), None, reduction, ignored)


def _ctc(inputs: Sequence[torch.Tensor], given: Attributes) -> list[torch.Tensor]:
    """Returns the loss, and the gradient of each row's loss as a result that has no gradient."""
    log_p, targets, *lengths = inputs
    if [value.dim() for value in inputs] != [3, 2, 1, 1]:
        raise ValueError(
            "log-probabilities (T, N, C), targets (N, S), and two tensors of lengths (N,) are "
            f"needed, not shapes {[list(value.shape) for value in inputs]}"
        )
    input_lengths, target_lengths = (length.long() for length in lengths)
    blank, zero_infinity = given["blank"], bool(given["zeroInfinity"])
    reduction = _reduction(given["reduction"])
    arguments = (targets.long(), input_lengths, target_lengths, blank)
    with DisableTorchFunction():
        loss = torch.ctc_loss(log_p, *arguments, reduction, zero_infinity)
    with torch.no_grad():
        ones = torch.ones_like(log_p[0, :, 0])
        gradient = torch.ops.poptorch_emu.ctc_loss_backward(ones, log_p, *arguments, zero_infinity)
    return [loss, gradient]


def _is_infinite(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    (x,) = inputs
    if not given["detect_negative"]:
        return x.isposinf() if given["detect_positive"] else torch.zeros_like(x, dtype=torch.bool)
    return x.isinf() if given["detect_positive"] else x.isneginf()


def _scatter_reduce(inputs: Sequence[torch.Tensor], given: Attributes) -> Any:
    src, index, *initial = inputs
    kind = given["reduction"]
    kind = _SCATTERS[kind] if kind in range(len(_SCATTERS)) else str(kind).lower()
    if kind not in _SCATTERS or initial or given["group_size"] != 1:
        raise compiler_error(
            f"ScatterReduce with the reduction {given['reduction']!r}, {len(inputs)} inputs and "
            f"group_size {given['group_size']} is not supported; choose one of {list(_SCATTERS)}, "
            "give two inputs and leave out group_size."
        )
    form = SCATTER_OPERATORS[f"torch_scatter::scatter_{kind}"]
    return as_list(form(src, index.long(), given["axis"], None, given["axis_size"]))[0]


def _reduce_median(inputs: Sequence[torch.Tensor], given: Attributes) -> Any:
    (x,) = inputs
    axes = sorted(axis % x.dim() for axis in given["axes"] or range(x.dim()))
    others = [axis for axis in range(x.dim()) if axis not in axes]
    values, indices = x.permute(*others, *axes).flatten(len(others)).median(-1)
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    return [v.reshape(shape) if given["keepdims"] else v for v in (values, indices)]


def _group_norm(inputs: Sequence[torch.Tensor], given: Attributes) -> Any:
    x, scale, bias = inputs
    groups, rows, channels = given["num_groups"], x.size(0), x.size(1)
    area = math.prod(x.shape[2:])
    y, mean, inverse = torch.native_group_norm(
        x, scale, bias, rows, channels, area, groups, given["epsilon"]
    )
    return y, mean.flatten(), inverse.flatten()


def _rows_of(axis: int, x: torch.Tensor) -> torch.Tensor:
    """Flattens `x` into a matrix, because softmax of operator set 11 works on a matrix."""
    return x.flatten(axis % x.dim()).flatten(0, -2) if axis % x.dim() else x.reshape(1, -1)


def _softmax(function: Callable[..., torch.Tensor]) -> PopartOperator:
    def run(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
        (x,) = inputs
        return function(_rows_of(given["axis"], x), -1).reshape(x.shape)

    return _with(run, axis=1)


def _over_axes(function: Callable[..., torch.Tensor]) -> PopartOperator:
    """Returns an operator that reduces axes by `function(tensor, axes, keepdim)`."""

    def run(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
        (x,) = inputs
        return function(x, list(given["axes"]) or list(range(x.dim())), bool(given["keepdims"]))

    return _with(run, axes=(), keepdims=1)


def _prod(x: torch.Tensor, axes: list[int], keepdim: bool) -> torch.Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keepdim)
    return x


def _cumsum(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    x, axis = inputs[0], int(inputs[1])
    x = x.flip(axis) if given["reverse"] else x
    total = x.cumsum(axis) - x if given["exclusive"] else x.cumsum(axis)
    return total.flip(axis) if given["reverse"] else total


def _folded(function: Callable[..., torch.Tensor]) -> PopartOperator:
    """Returns an operator that combines any number of inputs by a function of two."""

    def run(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
        result = inputs[0]
        for value in inputs[1:]:
            result = function(result, value)
        return result

    return _with(run)


_GRAPHCORE: dict[str, PopartOperator] = {
    "Atan2": _plain(torch.atan2),
    "BitwiseAnd": _plain(torch.bitwise_and),
    "BitwiseNot": _plain(torch.bitwise_not),
    "BitwiseOr": _plain(torch.bitwise_or),
    "BitwiseXnor": _plain(lambda x, y: ~(x ^ y)),
    "BitwiseXor": _plain(torch.bitwise_xor),
    "Bucketize": _with(lambda i, a: torch.bucketize(*i, right=bool(a["right"])), right=0),
    # The result has the input's dtype, so `outDataType` is ignored. The last attribute is a hint.
    "Ctc": _with(
        _ctc,
        reduction="Mean",
        blank=0,
        outDataType="UNDEFINED",
        zeroInfinity=0,
        enableReducedClassesInLabel=0,
    ),
    "Detach": _plain(lambda x: x.detach().clone()),
    "Expm1": _plain(torch.expm1),
    "Fmod": _plain(torch.fmod),
    "Gelu": _plain(F.gelu),
    "GroupNormalization": _with(_group_norm, num_groups=None, epsilon=1e-5),
    "IncrementMod": _with(
        lambda i, a: (i[0] + a["increment"]) % a["modulus"], increment=None, modulus=None
    ),
    "L1": PopartOperator(_l1, {"lambda": None, "reduction": "Mean"}),
    "Log1p": _plain(torch.log1p),
    "NllLoss": _with(_nll_loss, reduction="Mean", ignoreIndex=-100, inputIsLogProbability=0),
    "Nop": _plain(torch.clone),
    "ReduceMedian": _with(_reduce_median, axes=(), keepdims=1),
    "Remainder": _plain(torch.remainder),
    "ReplicatedAllReduce": _with(
        all_reduce_without_gradient, __collectiveOperator=0, __collectiveReplicaGrouping=()
    ),
    "Reshape": _with(lambda i, a: i[0].reshape(list(a["shape"])), shape=None),
    "Reverse": _with(lambda i, a: i[0].flip(list(a["dimensions"])), dimensions=None),
    "Round": _plain(torch.round),
    "Scale": _with(lambda i, a: i[0] * a["scale"], scale=None),
    "ScatterReduce": _with(
        _scatter_reduce,
        axis_size=None,
        axis=-1,
        reduction="sum",
        group_size=1,
        enable_index_broadcast=1,
    ),
    "Swish": _plain(F.silu),
}

_ONNX: dict[str, PopartOperator] = {
    **{
        name: _plain(getattr(torch, name.lower()))
        for name in (
            "Abs",
            "Acos",
            "Acosh",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "Ceil",
            "Cos",
            "Cosh",
            "Erf",
            "Exp",
            "Floor",
            "IsNaN",
            "Log",
            "Neg",
            "Reciprocal",
            "Relu",
            "Round",
            "Sigmoid",
            "Sign",
            "Sin",
            "Sinh",
            "Sqrt",
            "Tan",
            "Tanh",
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Pow",
            "MatMul",
            "Where",
        )
    },
    "And": _plain(torch.logical_and),
    "ArgMax": _with(lambda i, a: i[0].argmax(a["axis"], bool(a["keepdims"])), axis=0, keepdims=1),
    "ArgMin": _with(lambda i, a: i[0].argmin(a["axis"], bool(a["keepdims"])), axis=0, keepdims=1),
    "Concat": _with(lambda i, a: torch.cat(list(i), a["axis"]), axis=None),
    "CumSum": _with(_cumsum, exclusive=0, reverse=0),
    "Elu": _with(lambda i, a: F.elu(i[0], a["alpha"]), alpha=1.0),
    "Equal": _plain(torch.eq),
    "Flatten": _with(lambda i, a: i[0].reshape(math.prod(i[0].shape[: a["axis"]]), -1), axis=1),
    "Greater": _plain(torch.gt),
    "HardSigmoid": _with(
        lambda i, a: (i[0] * a["alpha"] + a["beta"]).clamp(0, 1), alpha=0.2, beta=0.5
    ),
    "Identity": _plain(torch.clone),
    "IsInf": _with(_is_infinite, detect_negative=1, detect_positive=1),
    "LeakyRelu": _with(lambda i, a: F.leaky_relu(i[0], a["alpha"]), alpha=0.01),
    "Less": _plain(torch.lt),
    "LogSoftmax": _softmax(torch.log_softmax),
    "Max": _folded(torch.maximum),
    "Mean": _with(lambda i, a: sum(i[1:], i[0]) / len(i)),
    "Min": _folded(torch.minimum),
    "Mod": _with(lambda i, a: (torch.fmod if a["fmod"] else torch.remainder)(*i), fmod=0),
    "Not": _plain(torch.logical_not),
    "Or": _plain(torch.logical_or),
    "ReduceL1": _over_axes(lambda x, axes, keep: x.abs().sum(axes, keep)),
    "ReduceL2": _over_axes(lambda x, axes, keep: x.square().sum(axes, keep).sqrt()),
    "ReduceLogSum": _over_axes(lambda x, axes, keep: x.sum(axes, keep).log()),
    "ReduceLogSumExp": _over_axes(torch.logsumexp),
    "ReduceMax": _over_axes(torch.amax),
    "ReduceMean": _over_axes(torch.mean),
    "ReduceMin": _over_axes(torch.amin),
    "ReduceProd": _over_axes(_prod),
    "ReduceSum": _over_axes(torch.sum),
    "ReduceSumSquare": _over_axes(lambda x, axes, keep: x.square().sum(axes, keep)),
    "Selu": _with(
        lambda i, a: a["gamma"] * F.elu(i[0], a["alpha"]),
        alpha=1.67326319217681884765625,
        gamma=1.05070102214813232421875,
    ),
    "Softmax": _softmax(torch.softmax),
    "Softplus": _plain(F.softplus),
    "Softsign": _plain(F.softsign),
    "Sum": _folded(torch.add),
    "ThresholdedRelu": _with(lambda i, a: i[0] * (i[0] > a["alpha"]), alpha=1.0),
    "Transpose": _with(
        lambda i, a: i[0].permute(list(a["perm"]) or list(range(i[0].dim()))[::-1]), perm=()
    ),
    "Xor": _plain(torch.logical_xor),
}

_TABLES = {"ai.graphcore": _GRAPHCORE, "ai.onnx": _ONNX}


def popart_operator(name: str, domain: str) -> PopartOperator | None:
    """Returns PopART's operator of this name and domain; `None` if it is not supported."""
    return _TABLES.get(domain, {}).get(name)


def popart_names() -> list[tuple[str, str]]:
    """Returns domain and name of each operator of PopART in the tables."""
    return [(domain, name) for domain, table in _TABLES.items() for name in table]
