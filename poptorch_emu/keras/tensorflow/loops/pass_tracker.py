"""Tracks which pass of a loop made a tensor, and whether a later pass uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from poptorch_emu.keras.capture.capture_state import Pass
from poptorch_emu.torch_versions import TorchDispatchMode, pytree


class PassTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Observes all operations of PyTorch.

    Attributes:
        used: tensors that are inputs of some operation, by their ids.
        crossing: used tensors of a pass that was already over, by their ids.
    """

    def __init__(self, innermost: Callable[[], Pass]) -> None:
        """Takes a function that returns the current pass."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._innermost = innermost
        self._made: dict[int, tuple[torch.Tensor, Pass]] = {}
        self.used: dict[int, torch.Tensor] = {}
        self.crossing: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs an operation and records its inputs and results."""
        kwargs = kwargs or {}
        taken = [each for each in pytree.tree_leaves((args, kwargs)) if _is_tensor(each)]
        for value in taken:
            self.note_use(value)
        result = func(*args, **kwargs)
        changed = set(map(id, taken))  # In-place results, such as weights copied to the host.
        for value in filter(_is_tensor, pytree.tree_leaves(result)):
            if id(value) not in changed:
                self._made[id(value)] = (value, self._innermost())
        return result

    def note_use(self, value: torch.Tensor) -> None:
        """Records that a tensor is used."""
        self.used[id(value)] = value
        maker = self.maker_of(value)
        if maker is not None and maker.is_gone:
            self.crossing[id(value)] = value

    def maker_of(self, value: torch.Tensor) -> Pass | None:
        """Returns the pass that made a tensor; `None` for older tensors."""
        known = self._made.get(id(value))
        return None if known is None else known[1].holder()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
