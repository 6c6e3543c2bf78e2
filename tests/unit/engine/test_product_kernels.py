"""The table of kernels for products: the choices, and that each row can be chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.processors import AMD_AVX2, AMD_AVX512, INTEL_AVX512, compiling_for

from poptorch_emu import _C
from poptorch_emu.engine import product_kernels
from poptorch_emu.engine.product_kernels import (
    TABLE,
    Kernel,
    Limits,
    Processor,
    Role,
    Row,
    choose,
    this_processor,
)

INTEL_AVX2 = ("GenuineIntel", 256)
UNKNOWN = (None, 512)

LAYER, FIXED, PRODUCT, GRADIENT = Role.LAYER, Role.FIXED_LAYER, Role.PRODUCT, Role.WEIGHT_GRADIENT
LSTM, ATTENTION, POOLED = Role.LSTM, Role.ATTENTION, Role.POOLED_CONVOLUTION


@pytest.fixture(autouse=True)
def has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that PyTorch's libraries and vectors for our kernels exist on this processor."""
    everything = Processor("", 0, own_vector_bits=512, has_mkl=True, has_onednn=True)
    monkeypatch.setattr(product_kernels, "this_processor", lambda: everything)


def chosen(processor: tuple[str | None, int], role: Role, *sizes: int) -> Kernel | None:
    with compiling_for(*processor):
        row = choose(role, *sizes, num_products=8)
    return None if row is None else row.kernel


@pytest.mark.parametrize(
    ("processor", "role", "sizes", "kernel"),
    [
        # Pairs of sizes: just large enough, and a little too small.
        (AMD_AVX2, FIXED, (17, 241, 257), Kernel.PANELS),
        (AMD_AVX2, FIXED, (16, 257, 255), None),
        (AMD_AVX2, LAYER, (256, 512, 64), Kernel.PANELS),
        (AMD_AVX2, LAYER, (256, 512, 63), None),
        (AMD_AVX2, PRODUCT, (16, 1024, 512), Kernel.PANELS),
        (AMD_AVX2, PRODUCT, (15, 1024, 512), None),
        (AMD_AVX2, GRADIENT, (512, 16, 512), Kernel.PANELS),
        (AMD_AVX2, GRADIENT, (512, 15, 512), None),
        (AMD_AVX512, GRADIENT, (384, 16, 256), Kernel.PANELS),
        (AMD_AVX512, GRADIENT, (384, 15, 320), None),
        (AMD_AVX512, GRADIENT, (100, 1024, 100), None),  # A quarter of the tiles is padding.
        (AMD_AVX512, PRODUCT, (256, 256, 256), Kernel.ONEDNN),
        (AMD_AVX512, PRODUCT, (255, 256, 256), None),
        (AMD_AVX512, LAYER, (256, 256, 256), None),
        (AMD_AVX512, FIXED, (80, 320, 256), Kernel.SMALL),
        (AMD_AVX512, FIXED, (31, 512, 512), Kernel.SMALL),
        (AMD_AVX512, FIXED, (32, 512, 512), Kernel.ONEDNN),
        (AMD_AVX512, FIXED, (2, 513, 512), None),
        (AMD_AVX512, FIXED, (31, 513, 512), None),
        (AMD_AVX512, FIXED, (1, 256, 256), None),
        (INTEL_AVX512, LAYER, (16, 257, 256), Kernel.LIBRARY),
        (INTEL_AVX512, LAYER, (15, 512, 512), None),
        (INTEL_AVX512, LAYER, (513, 512, 512), None),
        (INTEL_AVX512, GRADIENT, (512, 256, 256), Kernel.PANELS),
        (INTEL_AVX512, GRADIENT, (512, 256, 255), None),
        (INTEL_AVX512, PRODUCT, (512, 512, 512), None),
        (INTEL_AVX512, FIXED, (16, 512, 512), Kernel.LIBRARY),
        (INTEL_AVX512, FIXED, (15, 1024, 1024), Kernel.ONEDNN),
        (INTEL_AVX2, LAYER, (64, 512, 512), None),
        (INTEL_AVX2, GRADIENT, (512, 512, 512), None),
        (UNKNOWN, LAYER, (64, 512, 512), None),
        (UNKNOWN, FIXED, (128, 256, 256), Kernel.ONEDNN),
        (UNKNOWN, FIXED, (127, 256, 256), None),
        (UNKNOWN, LSTM, (16, 3, 256), Kernel.ROWS),
        (UNKNOWN, LSTM, (15, 3, 256), None),
        (UNKNOWN, LSTM, (16, 3, 288), None),
        (UNKNOWN, LSTM, (16, 3, 240), None),
        (AMD_AVX512, ATTENTION, (1, 1, 16), Kernel.HEADS),
        (AMD_AVX512, ATTENTION, (1, 1, 24), None),
        (AMD_AVX2, ATTENTION, (1, 1, 16), None),
        (INTEL_AVX512, ATTENTION, (1, 1, 16), None),
        (UNKNOWN, POOLED, (2**15, 15, 32), Kernel.ONEDNN),
        (UNKNOWN, POOLED, (2**14, 15, 32), None),
        (UNKNOWN, POOLED, (2**15, 16, 32), None),
        (UNKNOWN, POOLED, (2**15, 15, 33), None),
        *(
            (processor, POOLED, sizes, kernel)
            for processor in (AMD_AVX2, INTEL_AVX2)
            for sizes, kernel in (
                ((2**6, 16, 128), Kernel.DIRECT),
                ((2**6 - 1, 16, 128), None),
                ((2**6, 17, 128), None),
                ((2**6, 16, 129), None),
            )
        ),
    ],
)
def test_product_then_has_the_kernel_that_was_faster(
    processor: tuple[str | None, int], role: Role, sizes: tuple[int, ...], kernel: Kernel | None
) -> None:
    assert chosen(processor, role, *sizes) is kernel


@pytest.mark.parametrize("processor", [AMD_AVX512, INTEL_AVX512, INTEL_AVX2, UNKNOWN])
def test_small_product_then_has_the_kernel_for_them_on_any_processor(
    processor: tuple[str | None, int],
) -> None:
    for role in (FIXED, PRODUCT, GRADIENT):
        assert chosen(processor, role, 32, 256, 256) is Kernel.SMALL
        takes_more = role is FIXED and processor == AMD_AVX512
        assert (chosen(processor, role, 33, 256, 256) is Kernel.SMALL) is takes_more
        assert (chosen(processor, role, 2, 257, 16) is Kernel.SMALL) is takes_more
        assert chosen(processor, role, 1, 64, 64) is not Kernel.SMALL
    # Packed operands are padded; all other operands must fill whole cache lines.
    assert chosen(processor, FIXED, 8, 64, 10) is Kernel.SMALL
    assert chosen(processor, GRADIENT, 8, 64, 10) is not Kernel.SMALL
    assert chosen(processor, LAYER, 4, 64, 64) is Kernel.SMALL
    assert chosen(processor, LAYER, 3, 64, 64) is None


def test_weight_of_training_then_is_packed_where_a_window_pays_for_it() -> None:
    with compiling_for(*INTEL_AVX512):
        for sizes in ((8, 64, 64), (64, 512, 512)):
            assert choose(LAYER, *sizes, num_products=4) is not None
            assert choose(LAYER, *sizes, num_products=3) is None
        # A weight may have 1,024 numbers for each product.
        assert choose(LAYER, 8, 128, 128, num_products=16) is not None
        assert choose(LAYER, 8, 128, 128, num_products=15) is None


def test_kernel_that_cannot_run_then_is_not_chosen() -> None:
    nothing = Processor("GenuineIntel", 512, 0, has_mkl=False, has_onednn=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product_kernels, "this_processor", lambda: nothing)
        for role in Role:
            for sizes in ((8, 64, 64), (64, 512, 512), (512, 512, 512)):
                assert choose(role, *sizes, num_products=8) is None


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.role.name}-{row.kernel.name}")
def test_row_then_is_chosen_for_some_sizes(row: Row) -> None:
    processor = row.vendor, row.vector_bits or 512
    sizes = [(rows, 256, columns) for rows in (8, 16, 256, 512) for columns in (64, 256, 2048)]
    sizes.append((2**20, 8, 8))
    with compiling_for(*processor):
        assert row in [choose(row.role, *each, num_products=16) for each in sizes]


def test_limits_when_tiles_are_filled_badly_then_do_not_hold() -> None:
    limits = Limits(tile=(6, 64))
    assert limits.hold_for(96, 1, 64) and limits.hold_for(97, 1, 128)
    assert not limits.hold_for(7, 1, 64) and not limits.hold_for(96, 1, 65)


def test_processor_then_is_what_pytorch_and_the_engine_say(monkeypatch: pytest.MonkeyPatch) -> None:
    this_processor.cache_clear()
    here = this_processor()
    assert here.own_vector_bits == _C.vector_width() <= here.vector_bits
    assert replace(here, vendor=None) != here or here.vendor is None


def test_numbers_of_kernels_then_are_those_of_the_engine() -> None:
    ours = [kernel for kernel in Kernel if hasattr(_C.ProductKernel, kernel.name)]
    assert [_C.ProductKernel(kernel.number).name for kernel in ours] == [
        "LIBRARY",
        "SMALL",
        "PANELS",
    ]
