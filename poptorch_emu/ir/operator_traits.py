"""Traits of operators that their schemas do not state, in one table.

PyTorch's operators state most by their schemas and tags. An operator of ours is pure unless the
table says otherwise. Any other operator may run the user's code, so that nothing is known of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

_NAMESPACES_OF_PYTORCH = ("aten", "mkldnn", "prims")
_OURS = "poptorch_emu"


@dataclass(frozen=True)
class Traits:
    """Traits of one operator.

    Attributes:
        is_pure: whether the result depends only on the arguments and running it has no effect. Our
            random operators are pure, because the generator's state is an argument.
        is_foreign: whether it may run the user's code, which may write into the arguments.
        is_seen_outside: whether running it has an effect outside the program, for example printing.
        is_view: whether the result shares, or may share, the memory of the first tensor.
        is_pointwise: whether it is pure and each element of the result depends only on the elements
            at the same place.
        is_linear: whether applying it to a sum of tensors gives the sum of its results.
        reads_shape_only: whether it reads only the shape and type of its tensor, to create numbers.
        runs_bodies: whether it runs regions, whose operations have their own traits.
        adds_to_sum: whether it adds to the gradient sum of the weight that its last argument names.
        reads_sum: whether it reads the gradient sum of the weight that its last argument names.
        is_preparation: whether the result is computed from a weight and kept until it changes.
        is_left_to_sum: whether no segment runs it, because the sum over micro-batches reads its
            arguments instead.
        crosses_replicas: whether the result depends on values of other replicas or on the number
            of the replica.
    """

    is_pure: bool = True
    is_foreign: bool = False
    is_seen_outside: bool = False
    is_view: bool = False
    is_pointwise: bool = False
    is_linear: bool = False
    reads_shape_only: bool = False
    runs_bodies: bool = False
    adds_to_sum: bool = False
    reads_sum: bool = False
    is_preparation: bool = False
    is_left_to_sum: bool = False
    crosses_replicas: bool = False


# Operators of ours that are not just pure.
_TABLE = {
    "add_product": Traits(is_pure=False, adds_to_sum=True),
    **dict.fromkeys(
        ("all_gather", "all_reduce", "all_to_all", "own_piece"), Traits(crosses_replicas=True)
    ),
    "cond": Traits(is_pure=False, runs_bodies=True),
    # The next two operators may write their results into the memory of arguments.
    "elementwise": Traits(is_pure=False),
    "elementwise_rows": Traits(is_pure=False, reads_sum=True),
    "for_loop": Traits(is_pure=False, runs_bodies=True),
    "moving_average": Traits(is_pure=False, crosses_replicas=True),
    "host_call": Traits(is_pure=False, is_foreign=True, is_seen_outside=True),
    "pack_weight": Traits(is_preparation=True),
    "row_gradient": Traits(is_left_to_sum=True),
    "print_tensor": Traits(is_pure=False, is_seen_outside=True),
}
# PyTorch's views whose schemas do not declare them as views.
_UNDECLARED_VIEWS = (aten._unsafe_view.default,)
# Operators that move or negate elements, whatever their other arguments are.
_LINEAR = (
    *(aten.t.default, aten.transpose.int, aten.permute.default, aten.view.default),
    *(aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dim),
    *(aten.squeeze.dims, aten.clone.default, aten.neg.default),
)
# Results of `empty_like` and `new_empty` are no numbers yet.
_OF_A_SHAPE = (
    *(aten.zeros_like.default, aten.ones_like.default, aten.full_like.default),
    *(aten.new_zeros.default, aten.new_ones.default, aten.new_full.default),
)


@cache
def traits_of(target: OpOverload) -> Traits:
    """Returns the traits of an operator."""
    namespace, _, name = target._schema.name.partition("::")
    is_view = _is_declared_view(target) or target in _UNDECLARED_VIEWS
    if namespace == _OURS:
        return _TABLE.get(name, Traits(is_view=is_view))
    if namespace not in _NAMESPACES_OF_PYTORCH:
        return Traits(is_pure=False, is_foreign=True, is_seen_outside=True, is_view=is_view)
    is_random = torch.Tag.nondeterministic_seeded in target.tags
    is_pure = not is_random and not target._schema.is_mutable
    is_pointwise = is_pure and torch.Tag.pointwise in target.tags
    return Traits(
        is_pure=is_pure,
        is_view=is_view,
        is_pointwise=is_pointwise,
        is_linear=target in _LINEAR,
        reads_shape_only=target in _OF_A_SHAPE,
    )


def _is_declared_view(target: OpOverload) -> bool:
    results = target._schema.returns
    alias = results[0].alias_info if results else None
    return alias is not None and not alias.is_write
