"""Variables take no memory of the host before their first use, and are zero until then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hand_built import executor, one_segment

MIB = 1 << 20
STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not STATM.exists(), reason="the system does not tell what is resident")
def test_large_variable_then_takes_memory_when_it_is_first_written() -> None:
    program, _ = one_segment()
    table = program.add_variable("table", [64 * MIB], torch.float32, False)
    engine = executor(program)
    before = resident_bytes()
    made = executor(program)
    assert resident_bytes() - before < 8 * MIB
    del engine
    values = torch.arange(64 * MIB, dtype=torch.float32)
    before = resident_bytes()
    made.write_variable(table, 0, values)
    assert resident_bytes() - before > 200 * MIB
    assert torch.equal(made.read_variable(table, 0), values)


@pytest.mark.parametrize("num_elements", [1, 1000, MIB // 4, MIB + 3])
def test_variable_when_it_was_never_written_then_is_zero(num_elements: int) -> None:
    program, _ = one_segment()
    table = program.add_variable("table", [num_elements], torch.float32, False)
    found = executor(program).read_variable(table, 0)
    assert torch.equal(found, torch.zeros(num_elements)) and found.data_ptr() % 64 == 0
