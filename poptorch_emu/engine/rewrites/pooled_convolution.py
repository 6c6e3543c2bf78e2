"""Convolutions of few channels in inference, with the max pooling and the ReLU behind them.

The first layers of a network read images of few channels. oneDNN is nearly twice as fast at them
where it writes blocks of channels, and a pooling reads these as well as any layout
(`csrc/ops/pooled_convolution.cpp`). Where the operations are on several stages, the convolution's
does all of it. A ReLU may stand before or behind the pooling, which changes no number; a NaN stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph, is_single
from poptorch_emu.engine.product_kernels import this_processor
from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

_POOLED: OpOverload = torch.ops.poptorch_emu.pooled_convolution.default
_MAX_POOL = aten.max_pool2d_with_indices.default
# Of images that oneDNN reads as they are.
_MOST_INPUT_CHANNELS = 15
# The results of more are as fast channels last, and more than a fraction of them is written.
_MOST_OUTPUT_CHANNELS = 32
# Assumed: with fewer multiplications, PyTorch's tensors of oneDNN's kind cost more than they give.
# An image of MNIST has 144,000 in the first convolution (10 channels of 24 x 24, windows of 5 x 5).
_FEWEST_MULTIPLICATIONS = 2**23


@dataclass(frozen=True)
class _Chain:
    """A convolution and what follows it; `last` is what others read."""

    convolution: fx.Node
    pooling: fx.Node
    last: fx.Node
    has_relu: bool


def pool_convolutions(code: EngineGraph) -> int:
    """Changes convolutions whose results are pooled and read nowhere else; returns how many."""
    if not runs_here():
        return 0
    found = code.graph.fx.find_nodes(op="call_function", target=aten.convolution.default)
    chains = [_chain(node) for node in found if _is_for_us(node, code)]
    changed = [chain for chain in chains if chain is not None]
    for chain in changed:
        _replace(chain, code)
    return len(changed)


def runs_here() -> bool:
    """Returns whether this processor has vectors of the width of a block."""
    here = this_processor()
    return here.has_onednn and here.vector_bits == 512


def _is_for_us(node: fx.Node, code: EngineGraph) -> bool:
    conv = arguments_of(node)
    images, weight = conv.input.meta["val"], conv.weight.meta["val"]
    if conv.transposed or conv.groups != 1 or images.dim() != 4 or not is_single(node):
        return False
    return (
        is_single(conv.input)
        and code.is_made_once(conv.weight)
        and images.shape[1] <= _MOST_INPUT_CHANNELS
        and weight.shape[0] <= _MOST_OUTPUT_CHANNELS
        and node.meta["val"].numel() * math.prod(weight.shape[1:]) >= _FEWEST_MULTIPLICATIONS
    )


def _chain(convolution: fx.Node) -> _Chain | None:
    """Returns what follows a convolution, if that is pooled and nobody reads more of it."""
    relu = _only_user(convolution, aten.relu.default)
    pooling = _only_user(relu or convolution, _MAX_POOL)
    if pooling is None:
        return None
    results = [result for result in pooling.users if result.users]
    if [result.args[1] for result in results] != [0]:  # Somebody reads where the maxima are.
        return None
    (maxima,) = results
    behind = _only_user(maxima, aten.relu.default)
    last = behind or maxima
    return _Chain(convolution, pooling, last, has_relu=bool(relu or behind))


def _only_user(node: fx.Node, target: OpOverload) -> fx.Node | None:
    """Returns the only reader of a value, if it is such an operation."""
    if len(node.users) != 1:
        return None
    (user,) = node.users
    return user if user.target is target else None


def _replace(chain: _Chain, code: EngineGraph) -> None:
    conv, pool = arguments_of(chain.convolution), arguments_of(chain.pooling)
    args = (
        *(conv.input, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation),
        *(pool.kernel_size, pool.stride or pool.kernel_size, pool.padding, pool.dilation),
        *(pool.ceil_mode, chain.has_relu),
    )
    like = torch.empty(chain.last.meta["val"].shape, device="meta")
    chain.last.replace_all_uses_with(code.insert(chain.convolution, _POOLED, args, like))
