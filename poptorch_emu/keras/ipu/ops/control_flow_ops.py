"""Hints about the order of operations."""

from __future__ import annotations

from typing import Any

__all__ = ["barrier"]


def barrier(
    tensors: Any, insert_barrier_for_gradients: bool = False, name: str | None = None
) -> Any:
    """Returns the tensors unchanged, because values do not depend on the order (exact).

    Args:
        tensors: structure of tensors.
        insert_barrier_for_gradients: accepted.
        name: accepted.
    """
    return tensors
