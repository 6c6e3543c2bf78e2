"""Large weights ask for huge pages, small ones do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.forked_programs import run_forked

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no huge pages"
)

# Sends a table of the given MiB to the device, and prints the increase of memory that asks for huge
# pages, in MiB.
PROGRAM = """
import sys
from pathlib import Path
import torch
import poptorch_emu as poptorch

def advised_kib():
    total = size = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word, *rest = line.split()
        if word == "Size:":
            size = int(rest[0])
        elif word == "VmFlags:" and "hg" in rest:
            total += size
    return total

table = torch.nn.Embedding(int(sys.argv[1]) * 2**12, 64)
inference = poptorch.inferenceModel(table)
before = advised_kib()
words = torch.tensor([[0, 5, 7]])
assert torch.equal(inference(words), table(words))
print((advised_kib() - before) // 1024)
"""


@pytest.mark.parametrize(("mib", "least", "most"), [(16, 14, 18), (1, 0, 0)])
def test_weight_when_large_then_asks_for_huge_pages(mib: int, least: int, most: int) -> None:
    # The program has a process of its own, because memory that other tests have freed already asks
    # for huge pages.
    done = run_forked(["-c", PROGRAM, str(mib)])
    assert done.returncode == 0, done.stderr
    assert least <= int(done.stdout) <= most
