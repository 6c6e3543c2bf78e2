"""Prints tensors while a model runs."""

from __future__ import annotations

from typing import Any

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.trace import blocks
from poptorch_emu.trace.regions import current

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

    One text is printed for each micro-batch and replica; none if the returned tensor is not used.
    Outside a trace nothing is printed.

    Args:
        tensor: any shape.
        title: what stands before the values; by default a name is made.
        print_gradient: in training, also print the gradient, as "<title>_gradient".
        summarise_threshold: with more elements than this only the ends of long axes are shown.
        edge_items: how many elements at each end.
        max_line_width: in characters; rows are broken there and go on two blanks further in.
        digits: significant ones, of the largest number in fixed form.
        float_format: "auto", "fixed", "scientific" or "none" (six significant digits).
        separator: between the elements of a row, which is on a line of its own.
        open_bracket: before each row; of further axes on a line of its own.
        close_bracket: after each row, likewise.

    Raises:
        Error: the argument is not a tensor.
        KeyError: there is no such format.
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
    """Prints the value in forward and, if asked, the gradient in backward."""

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
