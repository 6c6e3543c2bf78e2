"""Inputs at addresses for which some processors run other code, with other bits."""

import pytest
import torch
from hand_built import ALL, Reg, add, executor, one_segment

BLOCKS, ROWS, WIDTH, UNITS = 4, 5, 10, 7


def multiplying(*, is_batched):
    """Returns a program that multiplies input 0 with the transpose of input 1, which is whole."""
    program, segment = one_segment(1, is_batched=is_batched, num_micro_batches=BLOCKS)
    program.load_input(segment, 1, program.add_input("weight", False))
    add(program, segment, "t", [Reg(1)], [2])
    add(program, segment, "mm", [Reg(0), Reg(2)], [3])
    program.store_output(segment, 3, ALL, 1)
    return program


def moved(tensor, elements):
    """Returns an equal tensor that begins `elements` elements behind an aligned address."""
    memory = torch.empty(tensor.numel() + elements)
    memory[elements:].copy_(tensor.flatten())
    return memory[elements:].view(tensor.shape)


@pytest.mark.parametrize("elements", [0, 1, 2, 4])
@pytest.mark.parametrize("is_batched", [True, False])
def test_product_when_an_input_is_not_aligned_then_has_the_bits_of_each_block_alone(
    is_batched, elements
):
    weight = torch.randn(UNITS, WIDTH)
    blocks = [torch.randn(ROWS, WIDTH) for _ in range(BLOCKS if is_batched else 1)]
    expected = [block @ weight.t() for block in blocks] * (1 if is_batched else BLOCKS)
    engine = executor(multiplying(is_batched=is_batched))
    (result,) = engine.run([moved(torch.cat(blocks), elements), moved(weight, elements)], 1)
    assert torch.equal(result, torch.cat(expected))
