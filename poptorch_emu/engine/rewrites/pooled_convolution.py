"""Runs convolutions of few channels together with the max pooling and the ReLU after them.

The first layers of a network read images with few channels. For these, a kernel of our own is
faster without AVX-512 (`csrc/numerics/direct_convolution.h`). With AVX-512, oneDNN is nearly twice
as fast if it writes blocks of channels, and a pooling reads blocks as fast as any other layout
(`csrc/ops/pooled_convolution.cpp`). If the operations are on several stages, the convolution's
stage computes all of them. A ReLU may come before or after the pooling, because the order changes
no number; a NaN stays NaN. This rewrite applies to inference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph, is_single
from poptorch_emu.engine.product_kernels import Kernel, Role, choose
from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

_POOLED: OpOverload = torch.ops.poptorch_emu.pooled_convolution.default
_MAX_POOL = aten.max_pool2d_with_indices.default


@dataclass(frozen=True)
class _Chain:
    """A convolution and the operations after it; others read only the result of `last`."""

    convolution: fx.Node
    pooling: fx.Node
    last: fx.Node
    has_relu: bool
    is_direct: bool


def pool_convolutions(code: EngineGraph) -> int:
    """Replaces convolutions whose result only a pooling reads; returns their number."""
    found = code.graph.fx.find_nodes(op="call_function", target=aten.convolution.default)
    chains = [_chain(node, kernel) for node in found if (kernel := _kernel(node, code))]
    changed = [chain for chain in chains if chain is not None]
    for chain in changed:
        _replace(chain, code)
    return len(changed)


def _kernel(node: fx.Node, code: EngineGraph) -> Kernel | None:
    """Returns the kernel that is faster for a convolution than PyTorch's; `None` without one."""
    conv = arguments_of(node)
    weight = conv.weight.meta["val"]
    if conv.transposed or conv.groups != 1 or weight.dim() != 4 or not is_single(node):
        return None
    outputs, inputs, *window = weight.shape
    rows = node.meta["val"].numel() // outputs * math.prod(window)
    row = choose(Role.POOLED_CONVOLUTION, rows, inputs, outputs)
    if row is None or not is_single(conv.input) or not code.is_made_once(conv.weight):
        return None
    if row.kernel is Kernel.DIRECT and set(conv.stride) != {1}:
        return None
    return row.kernel


def _chain(convolution: fx.Node, kernel: Kernel) -> _Chain | None:
    """Returns a convolution with its pooling and ReLU; `None` if other operations read between."""
    relu = _only_user(convolution, aten.relu.default)
    pooling = _only_user(relu or convolution, _MAX_POOL)
    if pooling is None:
        return None
    results = [result for result in pooling.users if result.users]
    if [result.args[1] for result in results] != [0]:  # The indices are read.
        return None
    (maxima,) = results
    behind = _only_user(maxima, aten.relu.default)
    last = behind or maxima
    has_relu, is_direct = bool(relu or behind), kernel is Kernel.DIRECT
    return _Chain(convolution, pooling, last, has_relu, is_direct)


def _only_user(node: fx.Node, target: OpOverload) -> fx.Node | None:
    """Returns the only user of a value, if it calls `target`; otherwise `None`."""
    if len(node.users) != 1:
        return None
    (user,) = node.users
    return user if user.target is target else None


def _replace(chain: _Chain, code: EngineGraph) -> None:
    conv, pool = arguments_of(chain.convolution), arguments_of(chain.pooling)
    args = (
        *(conv.input, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation),
        *(pool.kernel_size, pool.stride or pool.kernel_size, pool.padding, pool.dilation),
        *(pool.ceil_mode, chain.has_relu, chain.is_direct),
    )
    like = torch.empty(chain.last.meta["val"].shape, device="meta")
    chain.last.replace_all_uses_with(code.insert(chain.convolution, _POOLED, args, like))
