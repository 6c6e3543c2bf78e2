"""Large weights ask for huge pages, small ones do not."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

WIDTH = 64
MIB = 2**20

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no huge pages"
)


def advised_bytes() -> int:
    """Returns how many bytes of this process's memory ask for huge pages."""
    total = size = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word, *rest = line.split()
        if word == "Size:":
            size = int(rest[0]) * 1024
        elif word == "VmFlags:" and "hg" in rest:
            total += size
    return total


@pytest.mark.parametrize(("mib", "is_advised"), [(16, True), (1, False)])
def test_weight_when_large_then_asks_for_huge_pages(mib: int, is_advised: bool) -> None:
    table = nn.Embedding(mib * MIB // (4 * WIDTH), WIDTH)
    inference = poptorch.inferenceModel(table)
    gc.collect()  # What others left would be gone at the second look.
    before = advised_bytes()
    words = torch.tensor([[0, 5, 7]])
    assert torch.equal(inference(words), table(words))
    assert (advised_bytes() - before > mib * MIB // 2) is is_advised
