"""Elementwise operations in one pass have the bits of PyTorch's kernels, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import poptorch_emu._C  # noqa: F401  (it registers the operators)

elementwise = torch.ops.poptorch_emu.elementwise
# Sizes around the edges of parts and blocks.
SIZES = [0, 1, 7, 8, 33, 255, 256, 257, 4097, 8191, 8192, 8193, 40_000]

# Operation -> its number, the number of its operands, and the same function of PyTorch.
CASES: dict[str, tuple[int, int, Callable[..., torch.Tensor]]] = {
    "copy": (0, 1, lambda a: a),
    "neg": (1, 1, torch.neg),
    "sqrt": (2, 1, torch.sqrt),
    "mul": (3, 2, torch.mul),
    "div": (4, 2, torch.div),
    "add": (5, 2, torch.add),
    "addcmul": (6, 3, torch.addcmul),
    "addcdiv": (7, 3, torch.addcdiv),
    "lerp": (8, 2, lambda a, b, weight=0.1: torch.lerp(a, b, weight)),
    "round": (9, 1, lambda a: a.half().float()),
}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def row(code: int, target: int, *operands: int) -> list[int]:
    return [code, target, *operands, *[0] * (4 - len(operands))]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_operation_when_of_tensors_then_has_the_bits_of_pytorch(name: str, size: int) -> None:
    code, count, reference = CASES[name]
    tensors = [
        torch.randn(size).abs() if name == "sqrt" else torch.randn(size) for _ in range(count)
    ]
    extra = {"add": [1.0], "addcmul": [1.0], "addcdiv": [1.0], "lerp": [0.1]}.get(name, [])
    rows = row(code, count, *range(count), *([-1] if extra else []))
    (result,) = elementwise(tensors, [], rows, extra, [count], [-1])
    assert same_bits(result, reference(*tensors))


@pytest.mark.parametrize("factor", [-0.3, 0.9, 1e-8, 3.0])
@pytest.mark.parametrize("name", ["add", "addcmul", "addcdiv", "lerp"])
def test_operation_when_with_a_factor_then_has_the_bits_of_pytorch(
    name: str, factor: float
) -> None:
    code, count, _ = CASES[name]
    tensors = [torch.randn(3001) for _ in range(count)]
    rows = row(code, count, *range(count), -1)
    (result,) = elementwise(tensors, [], rows, [factor], [count], [-1])
    references = {
        "add": lambda a, b: torch.add(a, b, alpha=factor),
        "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=factor),
        "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c, value=factor),
        "lerp": lambda a, b: torch.lerp(a, b, factor),
    }
    assert same_bits(result, references[name](*tensors))


@pytest.mark.parametrize("name", ["mul", "div", "add"])
def test_operation_when_with_a_scalar_tensor_then_has_the_bits_of_pytorch(name: str) -> None:
    code, _, reference = CASES[name]
    tensor, scalar = torch.randn(3001), torch.tensor(0.37)
    constants = [1.0] if name == "add" else []
    rows = row(code, 1, 0, -1 - len(constants), *([-1] if constants else []))
    (result,) = elementwise([tensor], [scalar], rows, constants, [1], [-1])
    assert same_bits(result, reference(tensor, scalar))


def test_operation_when_several_are_given_then_later_ones_read_earlier_ones() -> None:
    a, b = torch.randn(2, 5000)
    rows = row(3, 2, 0, 1) + row(5, 3, 2, 0, -1) + row(2, 4, 3)
    total, root = elementwise([a, b], [], rows, [1.0], [3, 4], [-1, -1])
    expected = torch.add(a * b, a)
    assert same_bits(total, expected)
    assert same_bits(root.nan_to_num(), expected.sqrt().nan_to_num())


@pytest.mark.parametrize("size", SIZES)
def test_operation_when_of_half_numbers_then_has_the_bits_of_casts(size: int) -> None:
    weight, state = (torch.randn(size) * 10.0 ** torch.randint(-9, 6, (size,)) for _ in range(2))
    weight, gradient = weight.half(), torch.randn(size)
    rows = [
        *row(0, 3, 0),  # weight in float32
        *row(5, 4, 2, 1, -1),  # state + gradient
        *row(5, 5, 3, 4, -2),  # weight - 0.1 state
        *row(9, 6, 5),
    ]
    expected_state = state + gradient
    expected = torch.add(weight.float(), expected_state, alpha=-0.1).half()
    results = elementwise([weight, gradient, state], [], rows, [1.0, -0.1], [6, 4], [0, 2])
    assert results[0].data_ptr() == weight.data_ptr()
    assert torch.equal(weight.view(torch.int16), expected.view(torch.int16))
    assert same_bits(state, expected_state)


def test_operation_when_tensors_do_not_fit_then_is_refused() -> None:
    with pytest.raises(RuntimeError, match="of 3 elements of float32 or float16, not Double"):
        elementwise([torch.ones(3), torch.ones(3).double()], [], row(3, 2, 0, 1), [], [2], [-1])
    with pytest.raises(RuntimeError, match="rows of 6 numbers, but was given 5"):
        elementwise([torch.ones(3)], [], [0, 1, 0, 0, 0], [], [1], [-1])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("threads", [1, 3])
def test_operation_when_of_several_groups_then_each_has_the_bits_of_its_own(
    size: int, threads: int
) -> None:
    """One group has a tensor twice, which no result may overwrite before it is read."""
    sizes = [size, 3, 9000]
    groups = [list(torch.randn(2, each)) for each in sizes]
    groups.append([groups[0][0].clone()] * 2)
    rows = row(3, 2, 0, 1) + row(5, 3, 1, 2, -1)
    expected = [torch.add(b, a * b, alpha=0.25) for a, b in groups]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        tensors = [tensor for group in groups for tensor in group]
        results = elementwise(tensors, [], rows, [0.25], [3], [1], len(groups))
    finally:
        torch.set_num_threads(before)
    for result, (_, overwritten), wanted in zip(results, groups, expected, strict=True):
        assert same_bits(result, wanted)
        assert result.data_ptr() == overwritten.data_ptr()


@pytest.mark.parametrize("num_groups", [0, 2])
def test_operation_when_groups_are_unequal_then_is_refused(num_groups: int) -> None:
    with pytest.raises(RuntimeError, match=f"cannot make {num_groups} equal groups of 3 tensors"):
        elementwise([torch.ones(3)] * 3, [], row(3, 3, 0, 1), [], [3], [-1], num_groups)


@pytest.mark.parametrize("size", SIZES)
def test_operation_when_it_overwrites_then_later_rows_read_what_was_there(size: int) -> None:
    a, b = torch.randn(2, size)
    expected = a * b, torch.add(a * b, a)
    rows = row(3, 2, 0, 1) + row(5, 3, 2, 0, -1)
    product, total = elementwise([a, b], [], rows, [1.0], [2, 3], [0, 1])
    assert product.data_ptr() == a.data_ptr() and total.data_ptr() == b.data_ptr()
    assert same_bits(a, expected[0]) and same_bits(b, expected[1])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("threads", [1, 3])
def test_operation_when_of_an_update_then_has_the_bits_of_one_operation_after_the_other(
    size: int, threads: int
) -> None:
    gradient, weight, mean, square = torch.randn(4, size)
    square.abs_()
    scaled = gradient * 0.125
    kept = weight * 0.99
    expected_mean = torch.lerp(mean, scaled, 0.1)
    expected_square = torch.addcmul(square * 0.999, scaled, scaled, value=0.001)
    root = expected_square.sqrt() / 0.7 + 1e-8
    expected = torch.addcdiv(kept, expected_mean, root, value=-0.01)
    constants = [0.125, 0.99, 0.1, 0.999, 0.001, 0.7, 1.0, 1e-8, -0.01]
    code = [
        *(row(3, 4, 0, -1) + row(3, 5, 1, -2) + row(8, 6, 2, 4, -3) + row(3, 7, 3, -4)),
        *(row(6, 8, 7, 4, 4, -5) + row(2, 9, 8) + row(4, 10, 9, -6) + row(5, 11, 10, -8, -7)),
        *row(7, 12, 5, 6, 11, -9),
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        tensors = [gradient, weight, mean, square]
        results = elementwise(tensors, [], code, constants, [6, 8, 12], [2, 3, 1])
    finally:
        torch.set_num_threads(before)
    assert [result.data_ptr() for result in results] == [each.data_ptr() for each in
                                                         (mean, square, weight)]  # fmt: skip
    for result, value in zip(results, (expected_mean, expected_square, expected), strict=True):
        assert same_bits(result, value)


def test_operation_when_a_tensor_is_there_twice_then_both_are_read_as_they_were() -> None:
    a = torch.randn(9000)
    expected = torch.add(a * a, a)
    rows = row(3, 2, 0, 1) + row(5, 3, 2, 1, -1)
    product, total = elementwise([a, a], [], rows, [1.0], [2, 3], [0, -1])
    assert same_bits(total, expected) and product.data_ptr() == a.data_ptr()


def test_operation_when_a_tensor_is_a_result_and_overwritten_then_the_result_is_as_it_was() -> None:
    a, b = torch.randn(2, 9000)
    before = a.clone()
    kept, product = elementwise([a, b], [], row(3, 2, 0, 1), [], [0, 2], [-1, 0])
    assert same_bits(kept, before) and same_bits(product, before * b)


@pytest.mark.parametrize("size", SIZES)
def test_operation_when_it_overwrites_what_is_read_behind_a_root_then_waits(size: int) -> None:
    a, b = torch.randn(2, size).abs()
    product, root = a * b, (a * b).sqrt()
    expected = product, torch.add(root, a)
    rows = row(3, 2, 0, 1) + row(2, 3, 2) + row(5, 4, 3, 0, -1)
    results = elementwise([a, b], [], rows, [1.0], [2, 4], [0, 1])
    assert results[0].data_ptr() == a.data_ptr() and results[1].data_ptr() == b.data_ptr()
    assert same_bits(results[0], expected[0]) and same_bits(results[1], expected[1])


@pytest.mark.parametrize("size", [257, 9000])
def test_operation_when_nobody_reads_a_root_then_the_others_have_their_bits(size: int) -> None:
    a = torch.randn(size).abs()
    (square,) = elementwise([a], [], row(2, 1, 0) + row(3, 2, 0, 0), [], [2], [-1])
    assert same_bits(square, a * a)


def test_operation_when_of_the_root_of_a_scalar_then_has_the_bits_of_pytorch() -> None:
    a, scalar = torch.randn(9000), torch.tensor(0.3)
    rows = row(2, 1, -1) + row(3, 2, 0, 1)
    (product,) = elementwise([a], [scalar], rows, [], [2], [-1])
    assert same_bits(product, a * scalar.sqrt())
