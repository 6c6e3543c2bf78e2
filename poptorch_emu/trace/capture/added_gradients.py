"""Gradients that the user's code adds to `.grad` of parameters, in forward or backward.

For example, reversible layers and manual checkpoints call autograd during backward. PyTorch adds
its own gradient to the same `.grad` as soon as that is complete. A trace keeps its own gradient
separately, and adds it when the user reads `.grad`, or at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from poptorch_emu.torch_versions import current_graph_task_id

_GRAD: Any = torch.Tensor.grad
_READ, _REPLACED = _GRAD.__get__, (_GRAD.__set__, _GRAD.__delete__)


class AddedGradients(TorchFunctionMode):
    """Mode that is active while one value is differentiated for parameters, the leaves."""

    def __init__(self, value: torch.Tensor, leaves: Sequence[torch.Tensor]) -> None:
        """Registers hooks that report when the gradient of each leaf is complete.

        Args:
            value: tensor that is differentiated.
            leaves: fake tensors of trained parameters.
        """
        super().__init__()
        self._task = -1
        self._complete: dict[int, torch.Tensor] = {}
        self._is_in_grad: set[int] = set()
        value.register_hook(self._note_task)  # type: ignore[no-untyped-call]
        for leaf in leaves:
            leaf.register_hook(partial(self._note, id(leaf)))  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs `func`. If it reads or replaces `.grad`, PyTorch's part is added first."""
        is_read = func == _READ
        if (is_read or func in _REPLACED) and id(args[0]) in self._complete:
            part = self._complete.pop(id(args[0]))
            self._is_in_grad.add(id(args[0]))
            if is_read:
                with torch.no_grad():
                    args[0].grad = _sum(args[0].grad, part.clone())
        return func(*args, **(kwargs or {}))

    def total(self, leaf: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Returns the final `.grad` of a leaf, given PyTorch's own part."""
        return _sum(leaf.grad, None if id(leaf) in self._is_in_grad else gradient)

    def _note_task(self, _: torch.Tensor) -> None:
        """Stores the id of the differentiation, which begins with the value."""
        self._task = current_graph_task_id()

    def _note(self, leaf: int, gradient: torch.Tensor) -> None:
        if current_graph_task_id() == self._task:
            self._complete[leaf] = gradient


def scale(leaves: Sequence[torch.Tensor], factors: Sequence[float | torch.Tensor]) -> None:
    """Multiplies the `.grad` that `forward` left by the factors of the loss."""
    with torch.no_grad():
        for leaf in leaves:
            for factor in factors:
                if leaf.grad is not None and not (isinstance(factor, float) and factor == 1.0):
                    leaf.grad = torch.mul(leaf.grad, factor)


def _sum(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second
