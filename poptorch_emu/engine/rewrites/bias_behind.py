"""Finds a bias that is added to a product by an operation of its own, as attention layers do it."""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import VIEWS, EngineGraph, is_single

aten = torch.ops.aten


def take_bias_behind(product: fx.Node, code: EngineGraph) -> fx.Node | None:
    """Takes the addition of a bias to a product, or to a view of it, out of the graph.

    Returns:
        the bias, which is to be added with the product; `None`, and nothing is changed, where
        something else reads the values before it, or where there is none.
    """
    value, shape = product, product.meta["val"].shape[-1:]
    while len(value.users) == 1:
        (user,) = value.users
        if user.target in VIEWS:
            value = user
            continue
        if user.target is not aten.add.Tensor or user.kwargs or not is_single(user):
            return None
        (other,) = [each for each in user.args if each is not value] or [None]
        keeps_rows = value.meta["val"].shape[-1:] == shape
        if not keeps_rows or not isinstance(other, fx.Node) or not code.is_fixed(other):
            return None
        if other.meta["val"].shape != shape or not is_single(other):
            return None
        user.replace_all_uses_with(value)
        return other
    return None
