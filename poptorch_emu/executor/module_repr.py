"""Text of a model with the blocks that begin in it."""

from __future__ import annotations

import builtins
from typing import Any

import torch


def module_repr(m: torch.nn.Module) -> str:
    """Returns PyTorch's text of a module tree, with the hooks before each module (exact).

    Nested lines are indented by two blanks; PopTorch writes a number there.

    Example:
        >>> print(poptorch.module_repr(torch.nn.Sequential(torch.nn.ReLU())))
        Sequential(
          (0): ReLU()
        )
    """
    lines = m.extra_repr().splitlines()
    is_short = len(lines) == 1 and not m._modules
    for key, child in m._modules.items():
        text = "None" if child is None else module_repr(child)
        lines += f"({key}): {text}".splitlines()
    hooks = "".join(f"{hook!r} " for hook in m._forward_pre_hooks.values())
    name = m._get_name()  # type: ignore[no-untyped-call]
    if is_short or not lines:
        return f"{hooks}{name}({''.join(lines)})"
    inner = "\n".join(f"  {line}" for line in lines)
    return f"{hooks}{name}(\n{inner}\n)"


def print(m: Any) -> None:
    """Prints an object; a module first with its blocks, and then plainly (exact)."""
    if isinstance(m, torch.nn.Module):
        builtins.print(module_repr(m))
    builtins.print(m)
