"""Programs as bytes: reading returns the same program, and no bytes do harm."""

from __future__ import annotations

import os
import struct

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, Reg, add, executor, one_segment, pipeline

import poptorch_emu as poptorch
from poptorch_emu import _C

HEAD = 16  # Magic word and checksum.


def checksum(data: bytes) -> int:
    """The format's checksum, written again from its description: FNV-1a over 8-byte words."""
    prime, mask, total = 0x100000001B3, (1 << 64) - 1, 0xCBF29CE484222325
    whole = len(data) // 8 * 8
    for (word,) in struct.iter_unpack("<Q", data[:whole]):
        total = (total ^ word) * prime & mask
        total ^= total >> 32
    for byte in data[whole:]:
        total = (total ^ byte) * prime & mask
    return total


def with_right_checksum(data: bytes) -> bytes:
    return data[:8] + struct.pack("<Q", checksum(data[HEAD:])) + data[HEAD:]


def many_kinds() -> _C.Program:
    """Returns a program with every kind of load, store and argument that a file knows."""
    program, segment = one_segment(2, num_micro_batches=2)
    weight = program.add_variable("weight", [3], torch.float32, False)
    program.load_variable(segment, 2, weight)
    program.load_constant(segment, 3, program.add_constant(torch.tensor([1, 2, 0])))
    program.load_scalar(segment, 4, program.add_scalar("rate", 0.25))
    program.load_rng(segment, 5)
    add(program, segment, "add.Tensor", [Reg(0), 1.5], [6], dies=[0], alpha=2)
    add(program, segment, "sum.dim_IntList", [Reg(6), [1], True], [7], dtype=None)
    add(program, segment, "cat", [[Reg(6), Reg(1)], 1], [8])
    add(program, segment, "index.Tensor", [Reg(2), [Reg(3)]], [9])
    add(program, segment, "zeros", [[3, 1]], [10], dtype=torch.float32, device="cpu")
    add(program, segment, "gelu", [Reg(1)], [11], approximate="tanh")
    add(program, segment, "mul.Tensor", [Reg(11), Reg(4)], [12])
    add(program, segment, "upsample_nearest2d.vec", [Reg(13), None, [2.0, 2.0]], [14])
    program.load_constant(segment, 13, program.add_constant(torch.ones(1, 1, 2, 2)))
    preparation = program.add_segment("prepare", 0, _C.SegmentKind.PREPARATION)
    program.load_constant(preparation, 0, program.add_constant(torch.ones(2, 3)))
    add(program, preparation, "neg", [Reg(0)], [1])
    program.load_prepared(segment, 15, preparation, 1)
    program.add_instruction(
        segment,
        "mkldnn::_linear_pointwise",
        "",
        [Reg(1), Reg(15), None, "leaky_relu", [0.5], ""],
        {},
        [16],
        [],
        _C.Debug("linear"),
    )
    for register in (7, 8, 9, 10, 12, 14, 16):
        program.store_output(segment, register, ALL, 1)
    program.store_variable(segment, 9, weight)
    return program


def run(program: _C.Program) -> list[torch.Tensor]:
    engine = executor(program)
    engine.write_variable(0, 0, torch.tensor([0.5, -1.0, 2.0]))
    inputs = [torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3) - 3]
    return [result for _ in range(2) for result in engine.run(inputs, 1)]


def test_program_when_written_and_read_then_is_the_same() -> None:
    program = many_kinds()
    program.validate()
    again = _C.Program.deserialize(program.serialize())
    assert again.text() == program.text()
    assert again.serialize() == program.serialize()


def test_program_when_written_and_read_then_runs_bit_for_bit_the_same() -> None:
    program = many_kinds()
    again = _C.Program.deserialize(program.serialize())
    for expected, actual in zip(run(program), run(again), strict=True):
        assert torch.equal(expected, actual)


def test_links_and_schedule_when_written_and_read_then_pipeline_runs() -> None:
    x = torch.arange(8.0)
    program = pipeline(3, 4, capacity=2)
    again = _C.Program.deserialize(program.serialize())
    (expected,) = executor(program, workers=2).run([x], 1)
    (actual,) = executor(again, workers=2).run([x], 1)
    assert torch.equal(expected, actual)
    assert torch.equal(actual, ((x * 2) * 2 + 1) * 2 + 2)


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(2.5, dtype=torch.float16),
        torch.tensor([[True], [False]]),
        torch.empty(0, 3),
        torch.arange(6).view(2, 3).t(),
        torch.tensor([1e300, float("nan")], dtype=torch.float64),
    ],
    ids=["half", "bool", "empty", "transposed", "double"],
)
def test_constant_when_written_and_read_then_is_equal(value: torch.Tensor) -> None:
    program = _C.Program()
    segment = program.add_segment("only", 0, MICRO_BATCH)
    program.load_constant(segment, 0, program.add_constant(value))
    program.store_output(segment, 0, ALL, 1)
    program.set_schedule([[(segment, 0)]], 1)
    (result,) = executor(_C.Program.deserialize(program.serialize())).run([], 1)
    assert result.dtype == value.dtype
    assert torch.equal(result.view(value.shape).nan_to_num(7), value.nan_to_num(7))


def test_every_cut_when_read_then_error() -> None:
    data = many_kinds().serialize()
    for size in range(len(data)):
        with pytest.raises(poptorch.Error, match="program"):
            _C.Program.deserialize(data[:size])


def test_every_changed_byte_when_read_then_error() -> None:
    data = many_kinds().serialize()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x41
        with pytest.raises(poptorch.Error):
            _C.Program.deserialize(bytes(changed))


def test_every_changed_byte_with_right_checksum_when_read_then_error_or_a_valid_program() -> None:
    data = many_kinds().serialize()
    num_refused = 0
    for position in range(HEAD, len(data)):
        for mask in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= mask
            try:
                _C.Program.deserialize(with_right_checksum(bytes(changed))).validate()
            except poptorch.Error:
                num_refused += 1
    assert num_refused > len(data) // 2


def test_every_cut_with_right_checksum_when_read_then_error() -> None:
    data = many_kinds().serialize()
    for size in range(HEAD, len(data)):
        with pytest.raises(poptorch.Error, match="damaged"):
            _C.Program.deserialize(with_right_checksum(data[:size]))


def test_more_bytes_when_read_then_error() -> None:
    data = many_kinds().serialize()
    with pytest.raises(poptorch.Error, match="3 bytes follow its end"):
        _C.Program.deserialize(with_right_checksum(data + b"abc"))


def test_unknown_operator_when_read_then_error_names_it() -> None:
    data = many_kinds().serialize().replace(b"aten::gelu", b"aten::golu")
    with pytest.raises(poptorch.Error, match="'aten::golu.', which is not known here"):
        _C.Program.deserialize(with_right_checksum(data))


def test_other_version_of_the_format_when_read_then_error() -> None:
    data = many_kinds().serialize()
    with pytest.raises(poptorch.Error, match="not a program of this version"):
        _C.Program.deserialize(data[:7] + bytes([data[7] + 1]) + data[8:])


def test_second_output_that_is_changed_to_the_first_when_read_then_error() -> None:
    program, segment = one_segment()
    for _ in range(2):
        program.store_output(segment, 0, ALL, 1)
    program.validate()
    data, one = program.serialize(), struct.pack("<q", 1)
    places = [place for place in range(HEAD, len(data)) if data[place : place + 8] == one]
    messages = []
    for place in places:
        changed = data[:place] + bytes(8) + data[place + 8 :]
        try:
            _C.Program.deserialize(with_right_checksum(changed))
        except poptorch.Error as error:
            messages.append(error.message)
    assert sum("Output 0 is stored twice" in message for message in messages) == 1


def nested(depth: int) -> _C.Program:
    """Returns a program whose one instruction is a loop in a loop, `depth` instructions deep."""
    debug, inner = _C.Debug("node"), []
    code = ("aten::neg", "", [Reg(0)], {}, [1], [], debug, inner)
    for _ in range(depth - 1):
        body = _C.Body("body", 2, [0], -1, [1])
        body.add_instruction(*code)
        arguments = ["body", 1, False, [Reg(0)], [], [], []]
        code = ("poptorch_emu::for_loop", "", arguments, {}, [1], [], debug, [body])
    program, segment = one_segment()
    program.add_instruction(segment, *code)
    program.store_output(segment, 1, ALL, 1)
    return program


def one_deeper(data: bytes) -> bytes:
    """Returns `data`, of a nested program, with a loop around its innermost instruction.

    One more depth replaces the bytes between the common ends of the first two depths.
    """
    first, second = nested(1).serialize()[HEAD:], nested(2).serialize()[HEAD:]
    start = len(os.path.commonprefix([first, second]))
    end = len(os.path.commonprefix([first[start:][::-1], second[start:][::-1]]))
    inside, outside = first[start : len(first) - end], second[start : len(second) - end]
    assert data.count(inside) == 1
    return with_right_checksum(data.replace(inside, outside))


def test_nested_code_when_read_then_only_so_deep() -> None:
    assert one_deeper(nested(2).serialize()) == nested(3).serialize()
    deepest = nested(64).serialize()
    again = _C.Program.deserialize(deepest)
    assert executor(again).run([torch.ones(1)], 1)[0].item() == -1
    with pytest.raises(poptorch.Error, match="more than 64 deep"):
        _C.Program.deserialize(one_deeper(deepest))


def test_nested_code_when_written_then_only_so_deep_as_can_be_read() -> None:
    with pytest.raises(poptorch.Error, match="64 deep inside each other.*at most 63"):
        nested(65).serialize()


@pytest.mark.parametrize("count", [-1, 1 << 40, 1 << 62])
@pytest.mark.parametrize("marker", [12345, 1777], ids=["segment", "body"])
def test_number_of_registers_that_no_bytes_can_fill_when_read_then_error(
    marker: int, count: int
) -> None:
    program, segment = one_segment()
    body = _C.Body("body", 1777, [0], -1, [0])
    program.add_instruction(
        segment, "poptorch_emu::for_loop", "", ["body", 1, False, [Reg(0)], [], [], []], {}, [1],
        [], _C.Debug("loop"), [body],
    )  # fmt: skip
    for _ in range(1300):  # Adds bytes, so that the file may have that many registers.
        program.store_variable(segment, 1, program.add_variable("v", [1], torch.float32, False))
    program.load_constant(segment, 12344, program.add_constant(torch.ones(1)))
    data = program.serialize()
    _C.Program.deserialize(data)
    field = struct.pack("<q", marker)
    assert data.count(field) == 1
    with pytest.raises(poptorch.Error, match=f"damaged: {count} stands where a number below"):
        _C.Program.deserialize(with_right_checksum(data.replace(field, struct.pack("<q", count))))
