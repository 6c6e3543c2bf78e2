"""PopART's own operators through `custom_op` (api.md 12.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.small_models import run, trained

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("PopART operators of custom_op", fidelity="exact")

X = torch.randn(3, 4)
Y = torch.rand(3, 4) + 0.5
LABELS = torch.tensor([2, 0, 3])
INDEX = torch.tensor([[0, 1, 1, 3]] * 3)
TEXTS = torch.tensor([[1, 2], [3, 1]])


@dataclass
class Case:
    """An operator, its inputs, and its result in PyTorch."""

    name: str
    expected: Callable
    inputs: tuple[torch.Tensor, ...] = (X,)
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = "ai.graphcore"
    is_smooth: bool = True


def _onnx(name: str, expected: Callable, *inputs: torch.Tensor, **attributes: Any) -> Case:
    return Case(name, expected, inputs or (X,), attributes, "ai.onnx")


def _segments(x: torch.Tensor, index: torch.Tensor, reduce: str) -> torch.Tensor:
    zeros = torch.zeros(3, 5)
    return zeros.scatter_reduce(1, index, x, reduce, include_self=False)


CASES = [
    Case("Atan2", torch.atan2, (X, Y)),
    Case("Expm1", torch.expm1),
    Case("Log1p", torch.log1p, (Y,)),
    Case("Fmod", torch.fmod, (X * 3, Y)),
    Case("Remainder", torch.remainder, (X * 3, Y)),
    Case("Gelu", F.gelu),
    Case("Swish", F.silu),
    Case("Nop", torch.clone),
    Case("Detach", lambda x: x.detach()),
    Case("Round", torch.round, (X * 3,)),
    Case("Scale", lambda x: x * 2.5, attributes={"scale": 2.5}),
    Case("Reverse", lambda x: x.flip(0, 1), attributes={"dimensions": [0, 1]}),
    Case("Reshape", lambda x: x.reshape(2, 6), attributes={"shape": [2, 6]}),
    Case("IncrementMod", lambda x: (x + 2.0) % 3.0, attributes={"increment": 2.0, "modulus": 3.0}),
    Case("L1", lambda x: x.abs().mean() * 0.5, attributes={"lambda": 0.5}),
    Case("L1", lambda x: x.abs() * 0.5, attributes={"lambda": 0.5, "reduction": "NoReduction"}),
    Case("L1", lambda x: x.abs().sum(), attributes={"lambda": 1.0, "reduction": 0}),
    Case("NllLoss", lambda p, t: F.nll_loss(p.log(), t.long()), (X.softmax(1), LABELS.int())),
    Case(
        "NllLoss",
        lambda p, t: F.nll_loss(p, t, ignore_index=2, reduction="sum"),
        (X.log_softmax(1), LABELS),
        {"inputIsLogProbability": 1, "ignoreIndex": 2, "reduction": "Sum"},
    ),
    Case(
        "Ctc",
        lambda p, *rest: F.ctc_loss(p, *rest),
        (
            torch.randn(7, 2, 4).log_softmax(2),
            TEXTS.int(),
            torch.tensor([7, 6]),
            torch.tensor([2, 1]),
        ),
    ),
    Case(
        "ScatterReduce",
        lambda x, i: _segments(x, i, "sum"),
        (X, INDEX.int()),
        {"axis_size": 5},
    ),
    Case(
        "ScatterReduce",
        lambda x, i: _segments(x, i, "amax"),
        (X, INDEX),
        {"axis_size": 5, "reduction": "max", "axis": 1},
    ),
    Case("ReduceMedian", lambda x: x.median(1, keepdim=True)[0], attributes={"axes": [1]}),
    Case("ReduceMedian", lambda x: x.median(), attributes={"keepdims": 0}),
    Case(
        "GroupNormalization",
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (torch.randn(3, 4, 5), Y[0], X[0]),
        {"num_groups": 2, "epsilon": 1e-5},
    ),
    Case("ReplicatedAllReduce", torch.clone),
    Case("BitwiseXor", torch.bitwise_xor, (INDEX.int(), INDEX.int() + 1), is_smooth=False),
    Case("BitwiseNot", torch.bitwise_not, (INDEX.int(),), is_smooth=False),
    Case(
        "Bucketize",
        lambda x, b: torch.bucketize(x, b, right=True).int(),
        (X, torch.tensor([-1.0, 0.0, 1.0])),
        {"right": 1},
        is_smooth=False,
    ),
    _onnx("Abs", torch.abs),
    _onnx("Pow", torch.pow, Y, X),
    _onnx("Sum", lambda a, b, c: a + b + c, X, Y, X),
    _onnx("Mean", lambda a, b: (a + b) / 2, X, Y[:1]),
    _onnx("Max", torch.maximum, X, Y),
    _onnx("MatMul", torch.matmul, X, Y.T.contiguous()),
    _onnx("Concat", lambda a, b: torch.cat([a, b], 1), X, Y, axis=1),
    _onnx("Elu", lambda x: F.elu(x, 0.5), alpha=0.5),
    _onnx("LeakyRelu", lambda x: F.leaky_relu(x, 0.2), alpha=0.2),
    _onnx("Selu", F.selu),
    _onnx("HardSigmoid", lambda x: (0.2 * x + 0.5).clamp(0, 1)),
    _onnx("ThresholdedRelu", lambda x: F.threshold(x, 0.5, 0.0), alpha=0.5),
    _onnx("Softmax", lambda x: x.softmax(1)),
    _onnx("Softmax", lambda x: x.flatten().softmax(0).reshape(3, 4), axis=0),
    _onnx("LogSoftmax", lambda x: x.log_softmax(-1), axis=-1),
    _onnx("ReduceSum", lambda x: x.sum((0, 1), keepdim=True)),
    _onnx("ReduceMean", lambda x: x.mean(0), axes=[0], keepdims=0),
    _onnx("ReduceProd", lambda x: x.prod(1), axes=[1], keepdims=0),
    _onnx("ReduceL2", lambda x: x.norm(dim=1, keepdim=True), axes=[-1]),
    _onnx("ReduceLogSumExp", lambda x: x.logsumexp(1), axes=[1], keepdims=0),
    _onnx("Mod", torch.fmod, X, Y, fmod=1),
    _onnx("Flatten", lambda x: x.reshape(1, -1), axis=0),
    _onnx("Transpose", lambda x: x.T),
    _onnx("CumSum", lambda x, _: x.flip(1).cumsum(1).flip(1), X, torch.tensor(1), reverse=1),
]
_SMOOTH = [case for case in CASES if case.is_smooth and case.name != "CumSum"]


def _call(case: Case, *inputs: torch.Tensor) -> list[torch.Tensor]:
    example = case.expected(*case.inputs)
    return poptorch.custom_op(
        list(inputs), case.name, case.domain, 1, [example], case.attributes or None
    )


def _name(case: Case) -> str:
    return f"{case.name} {case.attributes or ''}"


CTC = (
    torch.randn(7, 3, 4).log_softmax(2),
    torch.tensor([[1, 2, 0], [3, 3, 1], [2, 1, 3]], dtype=torch.int32),
    torch.tensor([7, 6, 2], dtype=torch.int32),
    torch.tensor([2, 0, 3], dtype=torch.int32),  # The last one does not fit into two steps.
)


def _ctc(*inputs: torch.Tensor, num_results: int = 2, **attributes: Any) -> list[torch.Tensor]:
    kind = attributes.get("reduction", "Mean")
    loss = torch.zeros(3 if kind == "NoReduction" else (), dtype=inputs[0].dtype)
    examples = [loss, torch.zeros_like(inputs[0])][:num_results]
    return poptorch.custom_op(list(inputs), "Ctc", "ai.graphcore", 1, examples, attributes)


@pytest.mark.parametrize("reduction", ["Mean", "Sum", "NoReduction"])
def test_ctc_when_run_then_returns_loss_and_gradient_of_each_row(reduction: str) -> None:
    (log_p, *rest), name = CTC, {"NoReduction": "none"}.get(reduction, reduction.lower())
    attributes = {"reduction": reduction, "zeroInfinity": 1, "outDataType": "UNDIFINED"}
    loss, gradient = run(lambda *inputs: _ctc(*inputs, **attributes), *CTC)
    expected = F.ctc_loss(log_p, *rest, reduction=name, zero_infinity=True)
    torch.testing.assert_close(loss, expected)
    leaf = log_p.clone().requires_grad_()
    F.ctc_loss(leaf, *rest, reduction="none", zero_infinity=True).sum().backward()
    torch.testing.assert_close(gradient, leaf.grad)
    assert not gradient[:, 2].any()


@pytest.mark.parametrize("hint", [False, True])
@pytest.mark.parametrize("num_results", [1, 2])
def test_ctc_when_trained_with_its_hint_then_gradient_equals_pytorchs(hint, num_results) -> None:
    scores, rest = torch.randn(7, 3, 4), (CTC[1], CTC[2].clamp_min(5), CTC[3])

    def loss(*values: torch.Tensor) -> torch.Tensor:
        *others, weight = values
        attributes = {"reduction": "Sum", "enableReducedClassesInLabel": hint}
        found = _ctc(weight.log_softmax(2), *others, num_results=num_results, **attributes)
        return poptorch.identity_loss(found[0], "none")

    (after,) = trained(loss, [scores], [rest])
    leaf = scores.clone().requires_grad_()
    F.ctc_loss(leaf.log_softmax(2), *rest, reduction="sum").backward()
    torch.testing.assert_close(after, scores - 0.1 * leaf.grad, rtol=1e-4, atol=1e-5)


def test_ctc_in_half_precision_then_both_results_are() -> None:
    half = CTC[0].half()
    loss, gradient = run(lambda *inputs: _ctc(*inputs, zeroInfinity=1), half, *CTC[1:])
    assert loss.dtype is gradient.dtype is torch.float16
    expected = F.ctc_loss(half.float(), *CTC[1:], zero_infinity=True)
    torch.testing.assert_close(loss.float(), expected, rtol=2e-3, atol=2e-3)


def test_ctc_when_shapes_do_not_fit_then_error_names_them() -> None:
    with pytest.raises(poptorch.Error, match=r"targets \(N, S\).*not shapes \[\[7, 3, 4\], \[9\]"):
        run(lambda p, t, *rest: _ctc(p, t.reshape(-1), *rest), *CTC)


@pytest.mark.parametrize("attributes", [{}, {"detect_negative": 0}, {"detect_positive": 0}])
def test_is_inf_when_one_sign_is_left_out_then_not_found(attributes: dict[str, int]) -> None:
    x = torch.tensor([float("inf"), -float("inf"), 1.0, float("nan")])
    (found,) = run(
        lambda x: poptorch.custom_op([x], "IsInf", "ai.onnx", 10, [x > 0], attributes), x
    )
    expected = [attributes.get("detect_positive", 1), attributes.get("detect_negative", 1), 0, 0]
    assert found.tolist() == [bool(each) for each in expected]


def test_all_reduce_of_one_replica_when_grouped_then_is_the_input() -> None:
    attributes = {"__collectiveOperator": 0, "__collectiveReplicaGrouping": [1, 1, 1]}
    case = Case("ReplicatedAllReduce", torch.clone, attributes=attributes)
    assert torch.equal(run(lambda x: _call(case, x), X)[0], X)


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_operator_when_run_then_equals_pytorch(case: Case) -> None:
    if case.name == "CumSum":  # The axis is an input, whose value must be known.
        (result,) = run(lambda x: _call(case, x, torch.tensor(1)), X)
    else:
        (result,) = run(lambda *inputs: _call(case, *inputs), *case.inputs)
    torch.testing.assert_close(result, case.expected(*case.inputs))


@pytest.mark.parametrize("case", _SMOOTH, ids=_name)
def test_operator_when_trained_then_gradient_equals_pytorchs(case: Case) -> None:
    first, *rest = case.inputs

    def loss(*values: torch.Tensor) -> torch.Tensor:
        *others, weight = values
        (result,) = _call(case, weight, *others[:-1])
        return poptorch.identity_loss(result * result + weight.sum() * 0, "sum")

    (after,) = trained(loss, [first], [(*rest, torch.zeros(1))])
    leaf = first.clone().requires_grad_()
    value = case.expected(leaf, *rest)
    (value * value + leaf.sum() * 0).sum().backward()
    torch.testing.assert_close(after, first - 0.1 * leaf.grad, rtol=1e-4, atol=1e-5)


def test_results_when_fewer_are_asked_for_then_the_first() -> None:
    x, ones, zeros = torch.randn(2, 4), torch.ones(4), torch.zeros(4)

    def function(x: torch.Tensor, ones: torch.Tensor, zeros: torch.Tensor, count: int = 3):
        examples = [x, torch.zeros(4), torch.zeros(4)][:count]
        return poptorch.custom_op(
            [x, ones, zeros], "GroupNormalization", "ai.graphcore", 1, examples, {"num_groups": 2}
        )

    y, mean, inverse = run(function, x, ones, zeros)
    rows = x.reshape(4, 2)
    torch.testing.assert_close(mean, rows.mean(1))
    torch.testing.assert_close(inverse, (rows.var(1, correction=0) + 1e-5).rsqrt())
    (alone,) = run(lambda *inputs: function(*inputs, count=1), x, ones, zeros)
    assert torch.equal(alone, y)


def test_loss_operator_when_not_marked_then_is_no_loss() -> None:
    def function(weight: torch.Tensor) -> torch.Tensor:
        return poptorch.custom_op(
            [weight.softmax(1), LABELS.to("ipu")], "NllLoss", "ai.graphcore", 1, [torch.zeros(())]
        )[0]

    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph!"):
        trained(lambda x, weight: function(weight), [X], [(X,)])


def _inputs(name: str, x: torch.Tensor) -> list[torch.Tensor]:
    return [x, x.long()] if name == "ScatterReduce" else [x]


@pytest.mark.parametrize(
    ("name", "attributes", "message"),
    [
        ("Swish", {"beta": 1.0}, r"given \['beta'\]. Unknown are \['beta'\]"),
        ("Scale", {}, r"missing are \['scale'\]"),
        ("L1", {"lambda": 1.0, "reduction": "Median"}, "choose 'Sum', 'Mean' or 'NoReduction'"),
        ("ReplicatedAllReduce", {"__collectiveOperator": 3}, "the operator 3; only 0"),
        ("ScatterReduce", {"axis_size": 3, "group_size": 2}, "group_size 2 is not supported"),
        ("Atan2", {}, "does not take these 1 inputs"),
        ("ScatterReduce", {"axis_size": 3, "reduction": "none"}, "choose one of \\['sum', 'max'"),
        ("Resize", {}, "No custom operator 'Resize' version 1 is registered"),
    ],
)
def test_operator_when_it_does_not_fit_then_error_says_why(
    name: str, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(poptorch.Error, match=message):
        run(
            lambda x: poptorch.custom_op(
                _inputs(name, x), name, "ai.graphcore", 1, [x], attributes
            ),
            X,
        )
