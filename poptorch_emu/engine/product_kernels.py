"""Table of kernels for matrix products and operations made of them, by sizes and processor.

A row combines a kernel, the packing of its weight, and the sizes and processors that it is
faster than PyTorch's own product. The choice depends on the graph and the processor, never on the
stages, so that stages change no bit. The engine runs the chosen kernel or raises an error that says
why it cannot. The limits come from measurements in `benchmarks/results/product_kernels.csv`, made
by `benchmarks/product_kernels.py`; `benchmarks/results/levers.csv` has the gain of each row.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, replace
from enum import Enum

import torch

from poptorch_emu import _C
from poptorch_emu.engine import onednn
from poptorch_emu.environment import processor


class Role(Enum):
    """Purpose of a product, or of an operation made of products of these sizes."""

    FIXED_LAYER = "a linear layer of inference, whose weight is packed once"
    LAYER = "a linear layer of training, whose weight is packed once a window"
    PRODUCT = "another product of training, such as the gradient of a layer's input"
    WEIGHT_GRADIENT = "the gradient of a layer's weight, which is added to its sum"
    LSTM = "an LSTM of training: (batch, inputs) @ (inputs, hidden units) in each step"
    ATTENTION = "attention of inference: scores (queries, keys) @ values (keys, depth)"
    POOLED_CONVOLUTION = (
        "a convolution of inference before a pooling: (elements of the result of one channel and "
        "of the window, input channels) @ (input channels, output channels)"
    )


class Kernel(Enum):
    """Implementation of a role; the first three are kernels of the engine's operators."""

    LIBRARY = "PyTorch's product, or MKL's where the weight is packed"
    SMALL = "csrc/numerics/gemm/small_product.h"
    PANELS = "csrc/numerics/gemm/panel_product.h"
    ONEDNN = "operators that call oneDNN"
    ROWS = "csrc/ops/lstm_rows.h"
    HEADS = "csrc/ops/attention_by_heads.cpp"
    DIRECT = "csrc/numerics/direct_convolution.h"

    @property
    def number(self) -> int:
        """The kernel's number in the arguments of the engine's operators."""
        return int(getattr(_C.ProductKernel, self.name))


@dataclass(frozen=True)
class Processor:
    """Properties of the processor that determine the choice.

    Attributes:
        vendor: vendor name as Linux reports it; `None` if the host does not report one.
        vector_bits: width of the vectors that PyTorch's libraries use, in bits.
        own_vector_bits: vector width of our compiled kernels in bits; 0 without such kernels.
        has_mkl: whether PyTorch was built with MKL.
        has_onednn: whether PyTorch was built with oneDNN.
    """

    vendor: str | None
    vector_bits: int
    own_vector_bits: int
    has_mkl: bool
    has_onednn: bool

    def runs(self, kernel: Kernel, is_packed: bool) -> bool:
        """Returns whether this processor can run a kernel."""
        if kernel is Kernel.ONEDNN:
            return self.has_onednn
        if kernel is Kernel.LIBRARY:
            return self.has_mkl or not is_packed
        return self.own_vector_bits >= (self.vector_bits if kernel is Kernel.HEADS else 1)


@functools.cache
def this_processor() -> Processor:
    """Returns the processor of this host, which compiles the program and runs it."""
    bits = {"AVX2": 256, "AVX512": 512}
    return Processor(
        vendor=processor("vendor_id"),
        vector_bits=bits.get(torch.backends.cpu.get_cpu_capability(), 0),
        own_vector_bits=_C.vector_width(),
        has_mkl=torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call]
        has_onednn=onednn.IS_AVAILABLE,
    )


def _from(fewest: int) -> range:
    return range(fewest, sys.maxsize)


@dataclass(frozen=True)
class Limits:
    """Sizes of products (rows, inputs) @ (inputs, outputs) that one kernel computes.

    Attributes:
        rows: allowed numbers of rows; `inputs`, `outputs`, `multiplications`: allowed numbers, too.
        most_numbers: maximum number of elements of each of the three matrices.
        line: factor of which `outputs` is a multiple; a packed weight is padded to one.
        tile: rows and columns of the kernel's tile; padding to whole tiles may add a sixteenth.
    """

    rows: range = _from(1)
    inputs: range = _from(1)
    outputs: range = _from(1)
    multiplications: range = _from(1)
    most_numbers: int = sys.maxsize
    line: int = 1
    tile: tuple[int, int] = (1, 1)

    def hold_for(self, rows: int, inputs: int, outputs: int) -> bool:
        """Returns whether the sizes are within the limits."""
        padded = _filled_up(rows, self.tile[0]) * _filled_up(outputs, self.tile[1])
        return (
            rows in self.rows
            and inputs in self.inputs
            and outputs in self.outputs
            and rows * inputs * outputs in self.multiplications
            and max(rows * inputs, inputs * outputs, rows * outputs) <= self.most_numbers
            and outputs % self.line == 0
            and 16 * (padded - rows * outputs) <= rows * outputs
        )


def _filled_up(size: int, tile: int) -> int:
    return -(-size // tile) * tile


@dataclass(frozen=True)
class Row:
    """One choice of the table.

    Attributes:
        gives: speed of a workload with this row, divided by the speed without it.
        vendor: vendor of the processor; `None` for any.
        vector_bits: vector width of the processor, in bits; 0 for any.
        is_packed: whether the weight is packed into the kernel's order before the product.
        fewest_products: minimum number of products in a window that makes packing pay.
        numbers_by_product: maximum size of the weight, in elements for each product of a window.
    """

    role: Role
    kernel: Kernel
    limits: Limits
    gives: str
    vendor: str | None = None
    vector_bits: int = 0
    is_packed: bool = False
    fewest_products: int = 1
    numbers_by_product: int = sys.maxsize

    def takes(self, role: Role, sizes: tuple[int, int, int], processor: Processor) -> bool:
        """Returns whether the row applies to a product."""
        rows, inputs, outputs = sizes
        if self.is_packed:
            outputs = _filled_up(outputs, self.limits.line)
        return (
            self.role is role
            and self.vendor in (None, processor.vendor)
            and self.vector_bits in (0, processor.vector_bits)
            and processor.runs(self.kernel, self.is_packed)
            and self.limits.hold_for(rows, inputs, outputs)
        )

    def pays(self, num_numbers: int, num_products: int) -> bool:
        """Returns whether `num_products` products in a window justify packing their weight."""
        is_soon_packed = num_numbers <= num_products * self.numbers_by_product
        return num_products >= self.fewest_products and is_soon_packed


_AMD, _INTEL = "AuthenticAMD", "GenuineIntel"

# Small matrices are multiplied in a core's cache, without packing; the depth is at most one block.
_SMALL = Limits(
    rows=_from(2),
    inputs=range(1, 257),
    multiplications=range(1, 2**21 + 1),
    most_numbers=2**16,
    line=16,
)
# On AMD processors with AVX-512, MKL uses vectors of half the width. These limits rest on one
# workload, MNIST in inference (levers.csv), because no single sizes were measured there.
_SMALL_ON_AMD = Limits(
    rows=_from(2),
    inputs=range(1, 1025),
    multiplications=range(1, 2**23),
    most_numbers=2**18,
    line=16,
)
# The kernel's tile holds 4 x 24 sums.
_AVX2 = Limits(
    rows=_from(16), inputs=_from(16), outputs=_from(64), multiplications=_from(2**20 + 1)
)
# The kernel's tile holds 6 x 64 sums. It also computes the padding.
_AVX512 = Limits(inputs=_from(16), multiplications=_from(2**20), tile=(6, 64))

# A single block of rows would use one thread only, while oneDNN shares each step among threads.
# Packed weights of more units do not stay in a core's cache; oneDNN was faster from 320 units on.
_LSTM = Limits(rows=_from(16), outputs=range(1, 257), line=32)
# With more input channels, oneDNN reorders the images. With more output channels, channels last is
# as fast. With fewer multiplications, wrapping tensors for oneDNN costs more than it saves
# (assumed); for example, the first convolution of MNIST has 144,000 in an image.
_FEW_CHANNELS = Limits(inputs=range(1, 16), outputs=range(1, 33), multiplications=_from(2**23))
# Measured on AMD from 1 to 32 inputs; with more than 16 the kernel is only as fast as oneDNN.
_FEW_INPUTS = Limits(inputs=range(1, 17), outputs=range(1, 129), multiplications=_from(2**17))

# If several rows apply to a product, the first one is chosen.
TABLE = (
    Row(Role.FIXED_LAYER, Kernel.PANELS, _AVX2, vendor=_AMD, vector_bits=256, is_packed=True,
        gives="1.08 encoder 4x256 inference"),
    Row(Role.FIXED_LAYER, Kernel.SMALL, _SMALL, is_packed=True,
        gives="1.95 mlp in inference"),
    Row(Role.FIXED_LAYER, Kernel.SMALL, _SMALL_ON_AMD, vendor=_AMD, vector_bits=512, is_packed=True,
        gives="1.1 mnist inference"),
    Row(Role.FIXED_LAYER, Kernel.LIBRARY, Limits(rows=_from(16), multiplications=_from(2**20)),
        vendor=_INTEL, is_packed=True,
        gives="1.02 encoder 4x256 inference"),
    Row(Role.FIXED_LAYER, Kernel.ONEDNN, Limits(multiplications=_from(2**23)), is_packed=True,
        gives="1.07 encoder 4x256 inference"),
    Row(Role.LAYER, Kernel.PANELS, _AVX2, vendor=_AMD, vector_bits=256, is_packed=True,
        fewest_products=4,
        gives="1.14 encoder 4x512, 1.08 lstm, with the other products of training"),
    Row(Role.LAYER, Kernel.SMALL, replace(_SMALL, rows=_from(4)), is_packed=True,
        fewest_products=4, numbers_by_product=1024,
        gives="1.53 mlp, 1.16 embedding, with the other products of training"),
    Row(Role.LAYER, Kernel.LIBRARY, Limits(rows=range(16, 513), multiplications=_from(2**20)),
        vendor=_INTEL, vector_bits=512, is_packed=True, fewest_products=4,
        gives="1.06 encoder 4x512, with gradients of weights by panels"),
    Row(Role.PRODUCT, Kernel.ONEDNN, Limits(multiplications=_from(2**24)),
        vendor=_AMD, vector_bits=512,
        gives="1.08 encoder 4x512"),
    Row(Role.PRODUCT, Kernel.PANELS, _AVX2, vendor=_AMD, vector_bits=256,
        gives="1.14 encoder 4x512, with layers and gradients of weights"),
    Row(Role.PRODUCT, Kernel.SMALL, _SMALL,
        gives="1.53 mlp, 1.16 embedding, with layers and gradients of weights"),
    Row(Role.WEIGHT_GRADIENT, Kernel.PANELS, _AVX2, vendor=_AMD, vector_bits=256,
        gives="1.14 encoder 4x512, with layers and gradients of inputs"),
    Row(Role.WEIGHT_GRADIENT, Kernel.SMALL, _SMALL,
        gives="1.08 mlp, 1.06 embedding"),
    Row(Role.WEIGHT_GRADIENT, Kernel.PANELS, _AVX512, vendor=_AMD, vector_bits=512,
        gives="1.03 encoder 4x512"),
    Row(Role.WEIGHT_GRADIENT, Kernel.PANELS, replace(_AVX512, multiplications=_from(2**25)),
        vector_bits=512,
        gives="1.06 encoder 4x512, with layers by packed weights"),
    Row(Role.LSTM, Kernel.ROWS, _LSTM,
        gives="1.16 lstm on two threads, 1.03 on one"),
    Row(Role.ATTENTION, Kernel.HEADS, Limits(line=16), vendor=_AMD, vector_bits=512,
        gives="1.04 encoder 4x256 inference"),
    Row(Role.POOLED_CONVOLUTION, Kernel.DIRECT, _FEW_INPUTS, vector_bits=256,
        gives="1.6 mnist inference"),
    Row(Role.POOLED_CONVOLUTION, Kernel.ONEDNN, _FEW_CHANNELS, vector_bits=512,
        gives="1.34 mnist inference"),
)  # fmt: skip


def choose(
    role: Role, rows: int, inputs: int, outputs: int, *, num_products: int = 1
) -> Row | None:
    """Returns the row for a float32 product (rows, inputs) @ (inputs, outputs) on this processor.

    Args:
        role: purpose of the product.
        rows: rows of the left matrix.
        inputs: depth of the product.
        outputs: columns of the right matrix.
        num_products: number of such products in a window.

    Returns:
        a row of the table; `None` if PyTorch's own product is used.
    """
    sizes, here = (rows, inputs, outputs), this_processor()
    found = next((row for row in TABLE if row.takes(role, sizes, here)), None)
    return found if found is not None and found.pays(inputs * outputs, num_products) else None
