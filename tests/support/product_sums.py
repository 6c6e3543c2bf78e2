"""Compares what adds products to sums inside of them with what adds them afterwards.

The engine does the former, autograd the latter. MKL adds the sum last on Intel's processors, so
that both have the same bits there; on AMD's it begins with the sum, and bits differ.
"""

from __future__ import annotations

import functools

import torch


@functools.cache
def adds_sums_last() -> bool:
    """Returns whether `addmm_` gives the bits of a product and an addition on this processor."""
    source = torch.Generator().manual_seed(0)
    for size in (3, 8, 16, 64):
        left, right, total = (torch.randn(size, size, generator=source) for _ in range(3))
        if not torch.equal(total.clone().addmm_(left, right), total + left @ right):
            return False
    return True


def assert_alike(actual: torch.Tensor, expected: torch.Tensor, name: str = "") -> None:
    """Compares bits where those of sums are alike, and else values but for their rounding."""
    if adds_sums_last():
        assert torch.equal(actual, expected), name
        return
    if name.endswith("in_proj_bias"):
        # A bias of keys has no effect. Its gradient is what rounding leaves of zero, of which Adam
        # makes steps of full length.
        actual, expected = (_without_keys(value) for value in (actual, expected))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6, msg=lambda m: f"{name}: {m}")


def _without_keys(bias: torch.Tensor) -> torch.Tensor:
    queries, _, values = bias.chunk(3)
    return torch.cat([queries, values])
