"""Operators that were C++ libraries on the IPU, by name, against plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.small_models import Function, options, run, trained

import poptorch_emu as poptorch
from poptorch_emu.emulator import register_custom_op

pytestmark = pytest.mark.feature("named operators of custom_op", fidelity="exact")

X = torch.tensor([[-1.5, -0.0, 0.0, 2.0], [0.25, -3.0, 1.0, -0.5]])
Y = torch.tensor([[1.0, 2.0, -1.0, 0.5], [0.0, -3.0, 4.0, 1.0]])
QKV = torch.randn(3, 2, 8, 4)
SPARSE_ROWS, SPARSE_COLS = [0, 2, 2], [4, 0, 2]
BLOCKS = torch.arange(12.0).reshape(3, 2, 2) / 8 - 0.5


@dataclass
class Case:
    """An operator, its inputs, and its result in PyTorch.

    Attributes:
        surrogate: function whose gradient the operator has, unless that is the operator itself.
    """

    title: str
    expected: Callable
    inputs: tuple[torch.Tensor, ...] = (X,)
    attributes: dict[str, Any] = field(default_factory=dict)
    surrogate: Callable | None = None
    has_gradient: bool = True


def dense_blocks(corners_are_elements: bool = True) -> torch.Tensor:
    scale = 1 if corners_are_elements else 2
    matrix = torch.zeros(4, 6)
    for row, col, block in zip(SPARSE_ROWS, SPARSE_COLS, BLOCKS, strict=True):
        row, col = row * scale, col * scale
        matrix[row : row + 2, col : col + 2] += block
    return matrix


def sparse(rows: list[int], cols: list[int], **more: Any) -> dict[str, Any]:
    values = BLOCKS.flatten().tolist()
    return {"n_rows": 4, "n_cols": 6, "block_size": 2, "rows": rows, "cols": cols} | {
        "values": values,
        **more,
    }


def causal(qkv: torch.Tensor) -> torch.Tensor:
    q, k, v = qkv
    hidden = torch.full((q.size(1), q.size(1)), -10000.0).triu(1)
    return (q @ k.transpose(1, 2) + hidden).softmax(-1) @ v


def distances(p: int) -> Callable:
    return lambda a, b: (a[:, None] - b[None]).norm(p, dim=-1)


REMAP = dict.fromkeys(
    (
        "fwd_grain_size",
        "bwd_grain_size",
        "fwd_clone_layout",
        "bwd_clone_layout",
        "fwd_after_matmul",
        "bwd_after_matmul",
    ),
    1,
)
A, B = torch.randn(10, 5), torch.randn(7, 5)
CASES = [
    Case("ai.graphcore:RemapCE", torch.clone, attributes={"grain_size": 8, "debug_str": "here"}),
    Case("ai.graphcore:RemapCE", torch.clone, attributes=REMAP),
    Case("ai.graphcore:CopyTensor", torch.clone),
    Case("ai.graphcore:AllToAll", torch.clone),
    Case("ai.graphcore:ReplicatedAllToAll", torch.clone),
    Case("ai.graphcore:ReplicatedAllGather", lambda x: x[None]),
    Case("ai.graphcore:ReplicatedAllGather", torch.flatten),
    Case("ai.graphcore:ReplicatedAllGather", lambda x: x[None], (torch.tensor(2.0),)),
    Case(
        "ai.graphcore:ReplicatedAllReduceTP",
        torch.clone,
        attributes={"op": "add", "backwards": True, "__collectiveReplicaGrouping": [1, 1, 1]},
    ),
    Case("custom.ops:LeakyRelu", F.leaky_relu, (X + 0.1,)),
    Case("com.acme:LeakyRelu", lambda x: F.leaky_relu(x, 0.25), (X + 0.1,), {"alpha": 0.25}),
    Case("custom.ops:LeakyRelu", lambda x: torch.where(x < 0, x * 2, x), (X,), {"alpha": 2}),
    Case(
        "custom.ops:StraightThroughEstimator",
        lambda x: (x > 0).float(),
        surrogate=lambda x: x,
    ),
    Case(
        "custom.ops:FastSigmoid",
        lambda x: (x >= 0).float(),
        attributes={"alpha": 0.5},
        surrogate=lambda x: x / (1 + x.abs()),
    ),
    Case(
        "custom.ops:Heaviside",
        lambda x: (x >= 0).float(),
        surrogate=lambda x: torch.where(x < 0, torch.zeros(()), x),
    ),
    Case("com.acme:Cube", lambda x, b: (x**3 + b, x**3), (X, Y)),
    Case("ai.graphcore:AutogradProxy", lambda f, g: f.detach(), (X, Y), has_gradient=False),
    Case(
        "poptorch.custom_ops:FastGatherLastDim",
        lambda x, i: x.gather(-1, i.long()),
        (X, torch.tensor([[0, 3, 3], [1, 1, 2]], dtype=torch.int32)),
        {"axis": -1, "debug_str": ""},
    ),
    Case("ai.graphcore:L1Distance", distances(1), (A, B), {"root_path": "/x"}),
    Case("ai.graphcore:L2Distance", distances(2), (A, B), {"root_path": "/x"}),
    Case(
        "ai.graphcore:StaticSparseMatmul",
        lambda x: dense_blocks() @ x,
        (torch.randn(6, 3),),
        sparse(SPARSE_ROWS, SPARSE_COLS, mode="sparse_dense"),
    ),
    Case(
        "ai.graphcore:StaticSparseMatmul",
        lambda x: x @ dense_blocks(),
        (torch.randn(3, 4),),
        sparse(SPARSE_ROWS, SPARSE_COLS, mode="dense_sparse"),
    ),
    Case(
        "ai.graphcore:StaticDynSparse",
        lambda x: dense_blocks() @ x,
        (torch.randn(6, 3),),
        sparse([row // 2 for row in SPARSE_ROWS], [col // 2 for col in SPARSE_COLS]),
    ),
    Case(
        "ai.graphcore:StaticSparseMatmul",
        lambda x: torch.zeros(4, 3) + 0 * x.sum(),
        (torch.randn(6, 3),),
        {**sparse([], [], mode="sparse_dense"), "values": []},
    ),
    Case("ai.graphcore:FlashAttentionQKVPacked", causal, (QKV,)),
    Case(
        "ai.graphcore:FlashAttentionQKVPacked",
        causal,
        (QKV,),
        {"num_chunks_q": 4, "num_chunks_kv": 2},
    ),
]
TRAINED = [case for case in CASES if case.has_gradient]


def call(case: Case, *inputs: torch.Tensor, **more: Any) -> list[torch.Tensor]:
    domain, name = case.title.split(":")
    example = case.expected(*case.inputs)
    examples = list(example) if isinstance(example, tuple) else [example]
    attributes = {**case.attributes, **more} or None
    return poptorch.custom_op(list(inputs), name, domain, 1, examples, attributes)


def name_of(case: Case) -> str:
    return f"{case.title} {len(case.attributes)}"


def as_tuple(value: Any) -> tuple:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_operator_when_run_then_equals_its_formula(case: Case) -> None:
    results = run(lambda *inputs: tuple(call(case, *inputs, unknown="ignored")), *case.inputs)
    for result, expected in zip(results, as_tuple(case.expected(*case.inputs)), strict=True):
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("case", TRAINED, ids=name_of)
def test_operator_when_trained_then_has_the_gradient_of_its_formula(case: Case) -> None:
    num_weights = sum(value.is_floating_point() for value in case.inputs)
    weights, rest = case.inputs[:num_weights], case.inputs[num_weights:]

    def total(results: Any) -> torch.Tensor:
        factors = torch.linspace(-1.0, 2.0, results[0].numel())
        return sum(
            (factors * (number + 1) * result.flatten()).sum()
            for number, result in enumerate(results)
        )

    def loss(*values: torch.Tensor) -> torch.Tensor:
        others, learned = values[: len(rest)], values[len(rest) + 1 :]
        return poptorch.identity_loss(total(call(case, *learned, *others)), "none")

    after = trained(loss, list(weights), [(*rest, torch.zeros(1))])
    leaves = [weight.clone().requires_grad_() for weight in weights]
    total(as_tuple((case.surrogate or case.expected)(*leaves, *rest))).backward()
    for found, weight, leaf in zip(after, weights, leaves, strict=True):
        torch.testing.assert_close(found, weight - 0.1 * leaf.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", TRAINED, ids=name_of)
def test_operator_in_half_precision_then_results_are_half(case: Case) -> None:
    inputs = [value.half() if value.is_floating_point() else value for value in case.inputs]
    expected = as_tuple(case.expected(*(v.float() if v.is_floating_point() else v for v in inputs)))
    domain, name = case.title.split(":")
    examples = [value.half() for value in expected]

    def function(*values: torch.Tensor) -> Any:
        return tuple(
            poptorch.custom_op(list(values), name, domain, 1, examples, case.attributes or None)
        )

    for result, exact in zip(run(function, *inputs), expected, strict=True):
        assert result.dtype is torch.float16
        torch.testing.assert_close(result.float(), exact, rtol=4e-3, atol=4e-3)


def test_proxy_then_has_the_gradient_and_the_value_none() -> None:
    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        (y,) = poptorch.custom_op(
            [weight.round() * weight, 3 * weight], "AutogradProxy", "ai.graphcore", 1, [weight]
        )
        return poptorch.identity_loss(y * 100, "none")

    (after,) = trained(loss, [torch.tensor(5.7)], [(torch.zeros(1),)])
    torch.testing.assert_close(after, torch.tensor(5.7 - 0.1 * 300))


def test_distance_of_equal_rows_then_gradient_is_zero() -> None:
    for name in ("L1Distance", "L2Distance"):

        def loss(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, name: str = name) -> Any:
            (d,) = poptorch.custom_op([a, b], name, "ai.graphcore", 1, [torch.zeros(2, 2)])
            return poptorch.identity_loss(d, "sum")

        same = torch.ones(2, 3)
        for after in trained(loss, [same, same], [(torch.zeros(1),)]):
            assert torch.equal(after, same)


def quantised(x: torch.Tensor, bits: tuple[int, int], rounding: str = "nearest") -> list:
    attributes = {"root_path": "", "exponent_bits": bits[0], "mantissa_bits": bits[1]}
    attributes |= {"rounding": rounding, "fwd": True, "bwd": "ste"}
    return poptorch.custom_op([x], "SimulatedQuant", "ai.graphcore", 1, [x], attributes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("bits", [(2, 1), (3, 0), (4, 3), (3, 4), (5, 2), (5, 10)])
def test_quantised_to_nearest_then_is_the_nearest_value_of_the_format(bits, dtype) -> None:
    exponent, mantissa = bits
    e_max, step = 2 ** (exponent - 1) - 1, 2.0**-mantissa
    significands = torch.arange(0, 1, step)
    # The IPU's half precision has no room for the smallest binade of 5 exponent bits.
    exponents = range(-min(e_max, 14), e_max + 1)
    binades = [2.0**e * (1 + significands) for e in exponents]
    values = torch.cat([2.0 ** -min(e_max, 14) * significands, *binades]).double()
    x = torch.randn(4000) * values.max() / torch.randint(1, 40, (4000,))
    x = torch.cat([x, torch.tensor([0.0, 1e4 * values.max(), -1e4 * values.max()])]).half().float()
    x = x.to(dtype)
    (result,) = run(lambda x: tuple(quantised(x, bits)), x)
    assert result.dtype is dtype
    # The division first rounds a small number to the subnormals of half precision.
    grid = 2.0**-24 * 2.0 ** (14 - min(e_max, 14))
    fine = (x.double().abs() / grid).round() * grid
    held = torch.where(x.double().abs() < 2.0 ** -min(e_max, 14), fine, x.double().abs())
    near = (held.clamp(max=values.max())[:, None] - values).abs()
    # Of two equally near values, the first one is chosen, which is nearer to zero.
    expected = values[near.argmin(1)].to(dtype) * x.sign()
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_quantised_stochastically_then_is_right_on_average() -> None:
    x = torch.full((10000,), -1.35)
    (result,) = run(lambda x: tuple(quantised(x, (2, 1), "stochastic")), x)
    assert set(result.tolist()) == {-1.0, -1.5}
    share = (result == -1.5).float().mean().item()
    assert abs(share - 0.7) < 3 * math.sqrt(0.7 * 0.3 / 10000)


@pytest.mark.parametrize(
    ("fwd", "bwd", "value", "gradient"),
    [(1, "stop", 0.25, 0.0), (1, "ste", 0.25, 1.7), (0, "quantise", 0.2, 1.5)],
)
def test_quantised_when_trained_then_gradient_is_what_is_asked_for(fwd, bwd, value, gradient):
    attributes = {"exponent_bits": 2, "mantissa_bits": 1, "rounding": "nearest"}
    attributes |= {"fwd": fwd, "bwd": bwd}

    def loss(x: torch.Tensor, weight: torch.Tensor) -> Any:
        (y,) = poptorch.custom_op(
            [weight], "SimulatedQuant", "ai.graphcore", 1, [weight], attributes
        )
        return y, poptorch.identity_loss((1.7 * y + 0 * weight).sum(), "none")

    model = Function(loss, torch.tensor([0.2]))
    training = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=1.0)
    )
    found, _ = training(torch.zeros(1))
    training.destroy()
    torch.testing.assert_close(found, torch.tensor([value]))
    torch.testing.assert_close(model.weights[0].detach(), torch.tensor([0.2 - gradient]))


def test_group_quantised_then_numbers_come_back_in_their_order() -> None:
    numbers = torch.randint(0, 16, (3, 2, 32))
    runs = numbers.reshape(3, 2, 2, 4, 4)  # The last axes are the place in a word, and the word.
    words = sum(runs[..., shift, :] << (4 * shift) for shift in range(4))
    packed = torch.where(words >= 2**15, words - 2**16, words).to(torch.int16).reshape(3, 2, 8)
    scale, bias = torch.rand(3, 2, 1), torch.randn(3, 2, 1)

    def function(packed, scale, bias):
        return poptorch.custom_op(
            [packed, scale, bias],
            "GroupQuantizeDecompress",
            "optimum.custom_ops",
            1,
            [torch.zeros(3, 64, dtype=scale.dtype)],
            {"root_path": "/x"},
        )[0]

    expected = (numbers * scale + bias).reshape(3, 64)
    torch.testing.assert_close(run(function, packed, scale, bias), expected)
    half = run(function, packed, scale.half(), bias.half())
    torch.testing.assert_close(half.float(), expected, rtol=4e-3, atol=4e-3)


def overlap(a: torch.Tensor, b: torch.Tensor) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    common = max(float(width), 0.0) * max(float(height), 0.0)
    area = sum(float((c[2] - c[0]) * (c[3] - c[1])) for c in (a, b))
    return common / (area - common)


def suppressed(scores, boxes, k, threshold, least, sigma) -> list:
    """Computes one element of a batch, following the description of the operator."""
    remaining, rows = scores.clone(), []
    num_classes = scores.size(1)
    while len(rows) < k and remaining.max() > least:
        box, label = divmod(int(remaining.argmax()), num_classes)
        rows.append((box, float(remaining[box, label]), boxes[box].tolist(), label))
        taken = remaining[:, label] == -torch.inf
        for other in range(len(boxes)):
            common = overlap(boxes[box], boxes[other])
            if sigma:
                remaining[other, label] *= math.exp(-(common**2) / sigma)
            elif common > threshold:
                remaining[other, label] = -torch.inf
        remaining[box, label] = -torch.inf
        remaining[taken, label] = -torch.inf
    return rows


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("settings", [(0.3, 0.2, 0.0), (0.5, 0.4, 0.0), (0.5, 0.3, 0.7)])
def test_detections_then_are_what_a_loop_over_boxes_finds(settings, dtype) -> None:
    threshold, least, sigma = settings
    generator = torch.Generator().manual_seed(3)
    corners = torch.rand(3, 20, 2, generator=generator)
    boxes = torch.cat([corners, corners + torch.rand(3, 20, 2, generator=generator) * 0.5 + 0.1], 2)
    scores = torch.rand(3, 20, 2, generator=generator)
    scores[1] *= 0.1  # Entry 1 has no score above the limit, so it ends before the others.
    k = 12
    examples = [
        torch.zeros(3, k, dtype=dtype),
        torch.zeros(3, k),
        torch.zeros(3, k, 4),
        torch.zeros(3, k, dtype=torch.int32),
        torch.zeros(3, dtype=torch.int32),
    ]
    attributes = {"threshold": threshold, "scoreThreshold": least, "numDetections": k}
    attributes |= {"sigma": sigma, "useGather": 1}
    indices, values, chosen, classes, lengths = run(
        lambda s, b: tuple(
            poptorch.custom_op([s, b], "Nms", "ai.graphcore", 1, examples, attributes)
        ),
        scores,
        boxes,
    )
    for row in range(3):
        expected = suppressed(scores[row], boxes[row], k, threshold, least, sigma)
        assert lengths[row] == len(expected)
        for place, (box, score, corners, label) in enumerate(expected):
            assert (indices[row, place], classes[row, place]) == (box, label)
            assert values[row, place].item() == pytest.approx(score, rel=1e-5)
            assert chosen[row, place].tolist() == corners
        unused = slice(len(expected), None)
        assert (indices[row, unused] == -1).all() and (classes[row, unused] == 2**31 - 1).all()
        assert not values[row, unused].any() and not chosen[row, unused].any()
    assert lengths.tolist()[1] == 0


def test_operator_of_the_user_then_wins() -> None:
    register_custom_op("CopyTensor", "ai.graphcore", lambda x: x * 2)
    try:
        (result,) = run(lambda x: tuple(call(Case("ai.graphcore:CopyTensor", torch.clone), x)), X)
    finally:
        from poptorch_emu.ops import custom_operators

        del custom_operators._registered["ai.graphcore", "CopyTensor", 1]
    torch.testing.assert_close(result, X * 2)


def test_operator_outside_a_trace_then_returns_the_examples() -> None:
    example = torch.zeros_like(X)
    results = poptorch.custom_op([X], "CopyTensor", "ai.graphcore", 1, [example])
    assert len(results) == 1 and results[0] is example


@pytest.mark.parametrize(
    ("title", "version", "inputs", "attributes", "message"),
    [
        ("ai.graphcore:RemapCE", 1, 1, {}, "needs the attribute 'grain_size', or all of"),
        ("ai.graphcore:RemapCE", 1, 1, {"fwd_grain_size": 1}, r"given are \['fwd_grain_size'\]"),
        ("ai.graphcore:RemapCE", 1, 1, {"grain_size": 0.5}, "is 0.5; expected int"),
        ("ai.graphcore:CopyTensor", 1, 2, {}, r"has 1 inputs \(x\), but was given 2"),
        ("ai.graphcore:SimulatedQuant", 1, 1, {}, r"needs the attributes \['exponent_bits'"),
        ("custom.ops:LeakyRelu", 1, 1, {"alpha": "much"}, "'alpha' is 'much'; expected float"),
        ("ai.graphcore:FlashAttentionQKVPacked", 1, 1, {}, r"expected \(3, N, L, D\)"),
        ("poptorch.custom_ops:FastGatherLastDim", 1, 2, {}, "sizes but the last must be equal"),
        ("optimum.custom_ops:GroupQuantizeDecompress", 1, 3, {}, r"expected \(rows, groups"),
        ("ai.graphcore:Nms", 1, 2, {}, "expected \\(batch, boxes, classes\\)"),
        ("ai.graphcore:CopyTensor", 2, 1, {}, "like names are ai.graphcore:CopyTensor"),
        ("custom.ops:RemapCE", 1, 1, {}, "like names are ai.graphcore:RemapCE"),
        ("ai.graphcore:RemapCe", 1, 1, {}, "like names are ai.graphcore:RemapCE"),
        ("custom.ops:FastSigmoyd", 1, 1, {}, "like names are custom.ops:FastSigmoid"),
        ("ai.onnx:Relus", 1, 1, {}, "like names are ai.onnx:Relu"),
    ],
)
def test_operator_when_it_does_not_fit_then_error_says_why(
    title, version, inputs, attributes, message
) -> None:
    domain, name = title.split(":")
    # The sizes of the inputs differ, so that two inputs never agree.
    with pytest.raises(poptorch.Error, match=message):
        run(
            lambda x: poptorch.custom_op(
                [x, x[:1], x][:inputs], name, domain, version, [x], attributes
            ),
            X,
        )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mode": "dense"}, "expected one of"),
        ({"block_size": 3}, "no multiple of block_size 3"),
        ({"rows": [0, 2, 4]}, "a block is in row 2 of blocks; there are 2"),
        ({"cols": [0, 2]}, "expected the same"),
        ({"n_cols": 8}, r"shape \[6, 3\]; the sparse one is of \(4, 8\)"),
    ],
)
def test_sparse_product_when_blocks_do_not_fit_then_error_says_why(changed, message) -> None:
    attributes = sparse(SPARSE_ROWS, SPARSE_COLS, mode="sparse_dense") | changed
    with pytest.raises(poptorch.Error, match=message):
        run(
            lambda x: poptorch.custom_op(
                [x], "StaticSparseMatmul", "ai.graphcore", 1, [torch.zeros(4, 3)], attributes
            ),
            torch.randn(6, 3),
        )
