"""Compares rules for the metadata of results with the results of PyTorch's operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from poptorch_emu.trace.fakes import metadata_rules


def metadata(value: Any) -> list[Any]:
    """Returns dtypes, shapes and strides; dimensions with one element may have any stride."""
    return [
        (
            each.dtype,
            each.shape,
            [step for size, step in zip(each.shape, each.stride(), strict=True) if size > 1],
        )
        if isinstance(each, torch.Tensor)
        else each
        for each in pytree.tree_leaves(value)
    ]


def on_meta(values: Any) -> Any:
    """Returns meta tensors with the same metadata."""
    return pytree.tree_map_only(
        torch.Tensor,
        lambda value: torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device="meta"
        ),
        values,
    )


def check(func: Any, *args: Any, **kwargs: Any) -> None:
    """Compares the rule of an operation with the operation itself."""
    rule = metadata_rules.find(func, args)
    assert rule is not None, f"{func} has no rule"
    args_on_meta, kwargs_on_meta = on_meta((args, kwargs))
    assert metadata(rule(*args_on_meta, **kwargs_on_meta)) == metadata(func(*args, **kwargs))


def check_refused(func: Any, *args: Any) -> None:
    """Checks that neither the operation nor its rule accepts these arguments."""
    with pytest.raises(metadata_rules.NOT_TAKEN):
        func(*args)
    rule = metadata_rules.find(func, args)
    assert rule is not None, f"{func} has no rule"
    with pytest.raises(metadata_rules.NOT_TAKEN):
        rule(*on_meta(args))
