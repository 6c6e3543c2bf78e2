"""What an operator does, beyond what its schema says: the one table that tells it.

PyTorch's own operators say most by their schemas and tags. One of ours computes and does nothing
else, unless the table has it. Any other one is code of the user's, of which nothing is known.
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
    """What is known of an operator.

    Attributes:
        is_pure: whether it gives the same result for the same arguments and does nothing else. Our
            random operators are pure: the state of the generator is an argument of theirs.
        is_foreign: whether it may run code of the user's, which may write into its arguments.
        is_seen_outside: whether somebody outside the program sees when it runs.
        is_view: whether its result lies in the memory of its first tensor, or may do so.
        is_pointwise: whether it is pure, and each element of the result is made of the elements in
            the same place.
        runs_bodies: whether it runs the code of regions, which has traits of its own.
        adds_to_sum: whether it adds to the sum of a weight's gradients, which its last argument
            names, and for which no value stands.
        reads_sum: whether it reads such a sum, which its last argument names.
        is_preparation: whether its result, made of a weight, is kept while the weight stays.
        is_left_to_sum: whether no segment computes it, since a sum takes its arguments.
        crosses_replicas: whether its result depends on what other replicas have, or on which
            replica computes it.
    """

    is_pure: bool = True
    is_foreign: bool = False
    is_seen_outside: bool = False
    is_view: bool = False
    is_pointwise: bool = False
    runs_bodies: bool = False
    adds_to_sum: bool = False
    reads_sum: bool = False
    is_preparation: bool = False
    is_left_to_sum: bool = False
    crosses_replicas: bool = False


# Operators of ours that do more than to compute.
_TABLE = {
    "add_product": Traits(is_pure=False, adds_to_sum=True),
    **dict.fromkeys(
        ("all_gather", "all_reduce", "all_to_all", "own_piece"), Traits(crosses_replicas=True)
    ),
    "cond": Traits(is_pure=False, runs_bodies=True),
    # These may write their results in the place of arguments.
    "elementwise": Traits(is_pure=False),
    "elementwise_rows": Traits(is_pure=False, reads_sum=True),
    "for_loop": Traits(is_pure=False, runs_bodies=True),
    "moving_average": Traits(is_pure=False, crosses_replicas=True),
    "host_call": Traits(is_pure=False, is_foreign=True, is_seen_outside=True),
    "pack_weight": Traits(is_preparation=True),
    "row_gradient": Traits(is_left_to_sum=True),
    "print_tensor": Traits(is_pure=False, is_seen_outside=True),
}
# Views of PyTorch's whose schemas do not say so.
_UNDECLARED_VIEWS = (aten._unsafe_view.default,)


@cache
def traits_of(target: OpOverload) -> Traits:
    """Returns what is known of an operator."""
    namespace, _, name = target._schema.name.partition("::")
    is_view = _is_declared_view(target) or target in _UNDECLARED_VIEWS
    if namespace == _OURS:
        return _TABLE.get(name, Traits(is_view=is_view))
    if namespace not in _NAMESPACES_OF_PYTORCH:
        return Traits(is_pure=False, is_foreign=True, is_seen_outside=True, is_view=is_view)
    is_random = torch.Tag.nondeterministic_seeded in target.tags
    is_pure = not is_random and not target._schema.is_mutable
    is_pointwise = is_pure and torch.Tag.pointwise in target.tags
    return Traits(is_pure=is_pure, is_view=is_view, is_pointwise=is_pointwise)


def _is_declared_view(target: OpOverload) -> bool:
    results = target._schema.returns
    alias = results[0].alias_info if results else None
    return alias is not None and not alias.is_write
