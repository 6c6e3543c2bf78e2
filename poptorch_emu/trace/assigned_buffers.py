"""Buffers that `forward` assigns (`self.mem = ...`), whose value is kept after the call.

A buffer may get its final shape in the first call; for example, snnTorch's neurons begin with empty
states. The model is then captured again with buffers of that shape, and both captures must compute
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from poptorch_emu.errors import compiler_error, make_error
from poptorch_emu.ir.graph import Graph, source_of
from poptorch_emu.torch_versions import BatchNorm
from poptorch_emu.trace import leniency
from poptorch_emu.trace.compared_captures import computed
from poptorch_emu.trace.known_values import reads_shape_only
from poptorch_emu.trace.module_state import reassigned
from poptorch_emu.troubleshooting import Topic


@dataclass(frozen=True)
class Resized:
    """A buffer whose assigned value has another shape.

    Attributes:
        value: first assigned value of that shape, or zeros.
        is_known: whether `value` is the first assigned value.
    """

    value: torch.Tensor
    is_known: bool


def resized(
    assigned: Mapping[str, torch.Tensor],
    fakes: Mapping[str, torch.Tensor],
    first_assigned: Callable[[str, torch.Size], torch.Tensor | None],
) -> dict[str, Resized]:
    """Returns the buffers whose assigned values have another shape.

    Args:
        assigned: last assigned values, by the names of the buffers.
        fakes: fake tensors of the buffers, by name.
        first_assigned: returns the first value of a shape that was assigned to a buffer, if known.
    """
    found = {}
    for name, value in assigned.items():
        if value.shape != fakes[name].shape:
            first = first_assigned(name, value.shape)
            zeros = torch.zeros(value.shape, dtype=value.dtype)
            found[name] = Resized(zeros if first is None else first, first is not None)
    return found


def warn_of_assigned(model: torch.nn.Module, names: Iterable[str]) -> None:
    """Warns that assigned values are kept, which PopTorch does for batch norms only.

    Raises:
        Error: strict mode is on.
    """
    for name in names:
        owner = model.get_submodule(name.rpartition(".")[0])
        if not isinstance(owner, BatchNorm):
            error = make_error(reassigned("Buffer", name))
            leniency.tolerate(
                f"buffer {name}", error, "Here the assigned value is kept after the call."
            )


def check_unread(graph: Graph, names: Iterable[str]) -> None:
    """Checks that no result depends on the values that buffers had before a call.

    Raises:
        Error: an operation reads one of these values.
    """
    read = {source_of(node).name for node in graph.sources if not _is_unread(node)}
    for name in names:
        if name in read:
            raise _refused(name)


def check_equal(
    first: Graph, second: Graph, resized: Mapping[str, Resized], again: Collection[str]
) -> None:
    """Checks that two captures compute the same, with the old and with the new buffers.

    Args:
        first: the capture with the old buffers.
        second: the capture with the new buffers.
        resized: buffers whose shapes changed in the first capture.
        again: buffers whose shapes changed in the second capture.

    Raises:
        Error: the captures may compute different results.
    """
    check_unread(second, [name for name, each in resized.items() if not each.is_known])
    if again or list(computed(first, resized)) != list(computed(second, resized)):
        raise _refused(next(iter(again or resized)))


def _is_unread(node: fx.Node) -> bool:
    return node.meta["val"].numel() == 0 or all(
        reads_shape_only(user) or _overwrites(user, node) for user in node.users
    )


def _overwrites(user: fx.Node, node: fx.Node) -> bool:
    return user.target is torch.ops.aten.copy_.default and user.all_input_nodes[1:] != [node]


def _refused(name: str) -> Exception:
    return compiler_error(
        f"Buffer {name} gets a value of another shape in forward, and it cannot be shown that the "
        "next call would compute the same with that shape. Call the model once on the CPU before "
        "it is wrapped, so that the buffer has its shape, or register it with that shape; "
        f"{Topic.REASSIGNED_STATE}"
    )
