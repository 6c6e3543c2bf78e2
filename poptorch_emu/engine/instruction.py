"""One operation of a segment in the form in which the engine's builders take it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from poptorch_emu import _C
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.segments.segment import Body, Instruction, Register

aten = torch.ops.aten

# The fake tensors of the graph are contiguous; what CPU kernels make may not be, and `reshape`
# copies where a view is impossible.
SAFE_TWINS = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
}

# These copy dimensions that lie in another order by tiles, which is faster, with the same result.
_ours = torch.ops.poptorch_emu
_TILED_TWINS = {
    aten.clone.default: _ours.clone.default,
    aten.contiguous.default: _ours.contiguous.default,
    aten.reshape.default: _ours.reshape.default,
}

_DEVICE = "cpu"


def lowered(
    instruction: Instruction, sums: Mapping[str, int] = MappingProxyType({})
) -> tuple[Any, ...]:
    """Returns the arguments with which the engine's builders add an instruction.

    Args:
        instruction: of a segment.
        sums: the numbers of the sums of gradients, by weight.
    """
    target = SAFE_TWINS.get(instruction.target, instruction.target)
    target = _TILED_TWINS.get(target, target)
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
    """Returns an argument as the engine takes it: registers and the real device."""
    if isinstance(value, Register):
        return _C.Register(value.index)
    if isinstance(value, torch.device):
        return torch.device(_DEVICE)
    if isinstance(value, (list, tuple)):
        return [_on_device(item) for item in value]
    return value
