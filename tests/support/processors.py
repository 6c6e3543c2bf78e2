"""Selection of kernels for products, whatever processor runs the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from poptorch_emu import _C
from poptorch_emu.engine import product_kernels
from poptorch_emu.engine.product_kernels import Kernel, Limits, Role, Row

LIBRARY, SMALL, PANELS = (kernel.number for kernel in (Kernel.LIBRARY, Kernel.SMALL, Kernel.PANELS))

# Kernel for tests of small products, where the choice does not matter.
ANY = SMALL if _C.vector_width() > 0 else LIBRARY

AMD_AVX2 = ("AuthenticAMD", 256)
AMD_AVX512 = ("AuthenticAMD", 512)
INTEL_AVX512 = ("GenuineIntel", 512)

needs_mkl = pytest.mark.skipif(
    not product_kernels.this_processor().has_mkl, reason="this PyTorch has no MKL"
)
needs_onednn = pytest.mark.skipif(
    not product_kernels.this_processor().has_onednn, reason="this PyTorch has no oneDNN"
)
needs_vectors = pytest.mark.skipif(
    _C.vector_width() == 0, reason="the engine's kernels need AVX2 or more"
)


@contextmanager
def compiling_for(vendor: str | None, vector_bits: int) -> Iterator[None]:
    """Selects the kernels that are fast on another processor; this processor runs them."""
    there = replace(product_kernels.this_processor(), vendor=vendor, vector_bits=vector_bits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product_kernels, "this_processor", lambda: there)
        yield


def on_any_processor(role: Role, **limits: range) -> tuple[Row, ...]:
    """Returns the table with the rows of a role for any processor, and with other limits."""
    return tuple(
        replace(row, vendor=None, vector_bits=0, limits=replace(row.limits, **limits))
        if row.role is role
        else row
        for row in product_kernels.TABLE
    )


@contextmanager
def choosing(role: Role, kernel: Kernel, *, is_packed: bool = False) -> Iterator[None]:
    """Selects one kernel for all products of a role, of any size, and for no other products."""
    row = Row(role, kernel, Limits(), gives="", is_packed=is_packed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product_kernels, "TABLE", (row,))
        yield
