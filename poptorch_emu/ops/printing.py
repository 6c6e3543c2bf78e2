"""Printing of tensors while a model runs."""

from __future__ import annotations

from typing import Any

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.trace.places import blocks
from poptorch_emu.trace.recording.regions import current

_FLOAT_FORMATS = {"auto": 0, "fixed": 1, "scientific": 2, "none": 3}


def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Returns `tensor`, and prints it on standard error whenever the model computes it (exact).

    One text is printed for each micro-batch and replica; nothing if the result is not used or
    outside a trace.

    Args:
        tensor: tensor of any shape.
        title: text before the values; by default a generated name.
        print_gradient: whether to print the gradient in training, too, as "<title>_gradient".
        summarise_threshold: number of elements above which only the ends of long axes are shown.
        edge_items: number of elements shown at each end.
        max_line_width: longest line in characters; longer rows continue two blanks further in.
        digits: number of significant digits, in fixed form those of the largest number.
        float_format: "auto", "fixed", "scientific" or "none" (six significant digits).
        separator: text between the elements of a row, which is on a line of its own.
        open_bracket: text before each row; for further axes, on a line of its own.
        close_bracket: text after each row; for further axes, on a line of its own.

    Raises:
        Error: the argument is not a tensor.
        KeyError: `float_format` is unknown.
    """
    if not isinstance(tensor, torch.Tensor):
        raise make_error(
            f"ipu print tensor must take a torch.tensor argument. {type(tensor)} is not supported."
        )
    layout = (
        summarise_threshold,
        edge_items,
        max_line_width,
        digits,
        _FLOAT_FORMATS[float_format],
        separator,
        open_bracket,
        close_bracket,
    )
    if not blocks.is_tracing():
        return tensor
    title = title or f"print_tensor_{len(current().recorder.graph.fx.nodes)}"
    result: torch.Tensor = _Print.apply(tensor, title, print_gradient, layout)  # type: ignore[no-untyped-call]
    return result


class _Print(torch.autograd.Function):
    """Prints the value in forward and, if requested, the gradient in backward."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, title: str, print_gradient: bool, layout: tuple[Any, ...]
    ) -> torch.Tensor:
        ctx.title, ctx.print_gradient, ctx.layout = title, print_gradient, layout
        return _print(tensor, title, layout)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.print_gradient:
            gradient = _print(gradient, f"{ctx.title}_gradient", ctx.layout)
        return gradient, None, None, None


def _print(tensor: torch.Tensor, title: str, layout: tuple[Any, ...]) -> torch.Tensor:
    result: torch.Tensor = torch.ops.poptorch_emu.print_tensor(tensor, title, *layout)
    return result
