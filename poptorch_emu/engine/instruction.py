"""Converts one operation of a segment to the form that the engine's builders accept."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from poptorch_emu import _C
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.segments.segment import Body, Instruction, Register
from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

# Operators that replace views. If strides differ from those in the graph, a view may be impossible,
# and `reshape` copies.
SAFE_TWINS = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
}

# Operators that copy permuted dimensions in tiles, which is faster and has the same result.
_ours = torch.ops.poptorch_emu
_TILED_TWINS = {
    aten.clone.default: _ours.clone.default,
    aten.contiguous.default: _ours.contiguous.default,
    aten.reshape.default: _ours.reshape.default,
}

# PyTorch's kernels that require contiguous arguments or dense rows, each with an operator of ours
# that first copies an argument if necessary.
_ORDERED_TWINS = {
    theirs: getattr(getattr(_ours, theirs._schema.name.partition("::")[2]), theirs._overloadname)
    for theirs in (
        aten._ctc_loss.Tensor,
        aten._ctc_loss.default,
        aten._embedding_bag.default,
        aten._embedding_bag_forward_only.default,
        aten._pdist_backward.default,
        aten._pdist_forward.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        aten.adaptive_max_pool3d_backward.default,
        aten.fractional_max_pool2d_backward.default,
        aten.fractional_max_pool3d_backward.default,
        aten.max_pool3d_with_indices.default,
        aten.max_pool3d_with_indices_backward.default,
        aten.mkldnn_rnn_layer.default,
        aten.native_group_norm.default,
        aten.native_group_norm_backward.default,
        aten.native_layer_norm_backward.default,
        aten.nll_loss2d_backward.default,
        aten.view.dtype,
        aten.view_as_complex.default,
    )
}

_DEVICE = "cpu"


def target_of(target: OpOverload) -> OpOverload:
    """Returns the operator that the engine calls, which accepts arguments with any strides."""
    target = SAFE_TWINS.get(target, target)
    return _TILED_TWINS.get(target) or _ORDERED_TWINS.get(target, target)


def lowered(
    instruction: Instruction, sums: Mapping[str, int] = MappingProxyType({})
) -> tuple[Any, ...]:
    """Returns the arguments that the engine's builders need to add an instruction.

    Args:
        instruction: instruction of a segment.
        sums: number of the sum of gradients of each weight, by the name of the weight.
    """
    target = target_of(instruction.target)
    args = [_on_device(value) for value in instruction.args]
    traits = traits_of(target)
    if traits.adds_to_sum or traits.reads_sum:
        args[-1] = sums[args[-1]]
    record = instruction.record
    debug = _C.Debug(
        f"{record.scope}/{instruction.name}" if record.scope else instruction.name,
        record.place.block_id,
        record.place.stage,
        record.module,
        record.source,
    )
    return (
        target._schema.name,
        target._schema.overload_name,
        args,
        {key: _on_device(value) for key, value in instruction.kwargs.items()},
        instruction.outputs,
        instruction.dies,
        debug,
        [_lowered_body(body) for body in instruction.bodies],
    )


def _lowered_body(body: Body) -> _C.Body:
    code = body.code
    result = _C.Body(code.name, code.num_registers, body.parameters, body.iteration, body.results)
    for instruction in code.instructions:
        result.add_instruction(*lowered(instruction))
    return result


def _on_device(value: Any) -> Any:
    """Returns an argument as the engine expects it, with its own registers and the CPU device."""
    if isinstance(value, Register):
        return _C.Register(value.index)
    if isinstance(value, torch.device):
        return torch.device(_DEVICE)
    if isinstance(value, (list, tuple)):
        return [_on_device(item) for item in value]
    return value
