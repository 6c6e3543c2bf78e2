"""Variables of which memory keeps what was packed, by oneDNN, by PyTorch's library, or by us."""

from __future__ import annotations

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, Reg, executor
from hypothesis import given
from hypothesis import strategies as st

from poptorch_emu import _C

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN"
)


ONEDNN, PRODUCTS = "for oneDNN", "for our products"
both_ways = pytest.mark.parametrize("way", [ONEDNN, PRODUCTS])


def program_of(
    way: str,
    shapes: list[tuple[int, int]],
    rows: int,
    *,
    is_read_plain: bool = False,
    dtype: torch.dtype = torch.float32,
):
    """Returns a program that multiplies rows by the transpose of each variable in turn."""
    program = _C.Program()
    preparation = program.add_segment("prepare", 0, _C.SegmentKind.PREPARATION)
    segment = program.add_segment("products", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("x", True))
    result = 0
    for number, shape in enumerate(shapes):
        variable = program.add_variable(f"w{number}", list(shape), dtype, False)
        packed, after = 2 * number + 1, 2 * number + 2
        if way == ONEDNN:
            program.load_variable(preparation, 2 * number, variable)
            program.add_instruction(
                *(preparation, "mkldnn::_reorder_linear_weight", "", [Reg(2 * number), rows], {}),
                *([packed], [2 * number], _C.Debug("pack")),
            )
            program.load_prepared(segment, packed, preparation, packed)
            operator = "mkldnn::_linear_pointwise"
            args = [Reg(result), Reg(packed), None, "none", [], ""]
        else:
            program.load_packed_variable(segment, packed, variable, rows)
            operator = "poptorch_emu::packed_linear"
            args = [Reg(result), Reg(packed), None, shape[0]]
        program.add_instruction(segment, operator, "", args, {}, [after], [], _C.Debug("by"))
        result = after
    program.store_output(segment, result, ALL, 1)
    if is_read_plain:
        plain = 2 * len(shapes) + 1
        program.load_variable(segment, plain, 0)
        program.store_output(segment, plain, ALL, 1)
    program.set_schedule([[(segment, 0)]], 1)
    return program


def products(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    for weight in weights:
        x = x @ weight.t().to(x.dtype)
    return x


def check(engine: _C.Executor, x: torch.Tensor, weights: list[torch.Tensor]) -> None:
    """Runs, and asks for the variables, in this order and the other one."""
    exact = products(x.double(), [weight.double() for weight in weights])
    # Each of the additions rounds once: 3 * 290 of them at 2**-24, of all the values' sizes.
    bound = 6e-5 * products(x.abs(), [weight.abs() for weight in weights])
    for _ in range(2):
        result = engine.run([x], 1)[0]
        assert ((result - exact).abs() <= bound).all()
        for number, weight in enumerate(weights):
            read = engine.read_variable(number, 0)
            assert torch.equal(read, weight) and read.is_contiguous()
            assert read.dtype is weight.dtype


@given(
    # Our kernel for small products takes up to 256 inputs, the library what is deeper.
    sizes=st.lists(st.integers(1, 70) | st.integers(257, 290), min_size=2, max_size=4),
    rows=st.integers(1, 40),
    seed=st.integers(0, 99),
    kind=st.sampled_from(
        [(ONEDNN, torch.float32), (PRODUCTS, torch.float32), (PRODUCTS, torch.float16)]
    ),
)
def test_variable_when_packed_then_is_read_with_its_bits(
    sizes: list[int], rows: int, seed: int, kind: tuple[str, torch.dtype]
) -> None:
    way, dtype = kind
    generator = torch.Generator().manual_seed(seed)
    shapes = list(zip(sizes[1:], sizes, strict=False))
    engine = executor(program_of(way, shapes, rows, dtype=dtype))
    x = torch.randn(rows, sizes[0], generator=generator)
    weights = [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]
    for number, weight in enumerate(weights):
        engine.write_variable(number, 0, weight)
    check(engine, x, weights)
    # Only one is written: the others are there in another order alone when all are packed again.
    weights[-1] = -2 * weights[-1]
    engine.write_variable(len(weights) - 1, 0, weights[-1])
    check(engine, x, weights)


@both_ways
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("replicas", [1, 3])
def test_variable_when_all_replicas_have_it_then_is_packed_for_all(
    workers: int, replicas: int, way: str
) -> None:
    engine = executor(program_of(way, [(8, 4)], 2), replicas=replicas, workers=workers)
    weight, x = torch.randn(8, 4), torch.randn(2 * replicas, 4)
    engine.write_variable(0, 0, weight)
    torch.testing.assert_close(engine.run([x], 1)[0], x @ weight.t())
    for replica in range(replicas):
        assert torch.equal(engine.read_variable(0, replica), weight)


@both_ways
def test_variable_when_a_micro_batch_reads_it_too_then_has_it_in_its_own_order(way: str) -> None:
    engine = executor(program_of(way, [(8, 4)], 2, is_read_plain=True))
    weight, x = torch.randn(8, 4), torch.randn(2, 4)
    engine.write_variable(0, 0, weight)
    for _ in range(2):
        result, plain = engine.run([x], 1)
        torch.testing.assert_close(result, x @ weight.t())
        assert torch.equal(plain.reshape(8, 4), weight)
