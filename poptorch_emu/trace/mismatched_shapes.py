"""Says of shapes that do not go together what PyTorch's kernel says, when a model is captured.

The rules for tensors without values have other words than the kernels, which users know. A kernel
looks at the shapes before it computes, and tensors that repeat one number take no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from poptorch_emu.torch_versions import disable_current_modes, pytree

aten = torch.ops.aten
# Beside those that work element by element.
_CHECKED_FIRST = frozenset(
    {
        aten.mm,
        aten.addmm,
        aten.bmm,
        aten.baddbmm,
        aten.mv,
        aten.addmv,
        aten.dot,
        aten.linear,
        aten.cat,
    }
)


def in_words_of_kernel(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], failure: RuntimeError
) -> RuntimeError:
    """Returns what PyTorch's kernel raises for tensors of these shapes, or else `failure`.

    Args:
        func: an operator.
        args: of the call that failed, with fake tensors.
        kwargs: likewise.
        failure: what was raised.
    """
    is_elementwise = torch.Tag.pointwise in func.tags and not func._schema.is_mutable
    if not is_elementwise and func.overloadpacket not in _CHECKED_FIRST:
        return failure
    with disable_current_modes():
        given, named = pytree.tree_map_only(torch.Tensor, _of_one_number, (args, dict(kwargs)))
        try:
            func(*given, **named)
        except RuntimeError as said:
            return RuntimeError(str(said))
        except Exception:
            return failure
    return failure


def _of_one_number(value: torch.Tensor) -> torch.Tensor:
    return torch.zeros((), dtype=value.dtype).expand(value.shape)
