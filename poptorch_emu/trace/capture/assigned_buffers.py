"""Buffers that `forward` assigns (`self.mem = ...`), whose value is kept after the call.

A buffer may get its final shape in the first call; for example, snnTorch's neurons begin with empty
states. The model is then captured again with buffers of that shape, and both captures must compute
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx

from poptorch_emu.errors import compiler_error, make_error
from poptorch_emu.ir.arguments import is_random
from poptorch_emu.ir.graph import Graph, source_of
from poptorch_emu.ir.mutation import is_mutating
from poptorch_emu.tensor_bytes import bytes_of
from poptorch_emu.torch_versions import BatchNorm
from poptorch_emu.trace.capture.compared_captures import computed
from poptorch_emu.trace.model_state.module_state import reassigned
from poptorch_emu.trace.refusals import leniency
from poptorch_emu.trace.values.known_values import is_write_back, known_value, reads_shape_only
from poptorch_emu.troubleshooting import Topic


@dataclass(frozen=True)
class Resized:
    """A buffer that `forward` makes, or whose assigned value has another shape.

    Attributes:
        value: first assigned value of that shape, or zeros.
        is_known: whether `value` is the first assigned value.
        is_made: whether `forward` was the first to make the buffer.
    """

    value: torch.Tensor
    is_known: bool
    is_made: bool = False


class Capture(NamedTuple):
    """One record of `forward`.

    Attributes:
        graph: the recorded operations.
        results: nodes of outputs and losses.
        assigned: nodes of the values that `forward` assigned to buffers, by name.
    """

    graph: Graph
    results: Sequence[fx.Node]
    assigned: Mapping[str, fx.Node]


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
    first: Capture, second: Capture, changed: Mapping[str, Resized], again: Collection[str]
) -> None:
    """Checks that two captures compute the same, with the old and with the new buffers.

    Args:
        first: the capture with the old buffers, or without them.
        second: the capture with the new buffers.
        changed: buffers that the first capture made, or whose shapes it changed.
        again: buffers that the second capture made or changed.

    Raises:
        Error: the captures may compute different results.
    """
    check_unread(second.graph, [name for name, each in changed.items() if not each.is_known])
    names = sorted({*first.assigned, *second.assigned, *changed})
    if again or _texts(first, names, changed) != _texts(second, names, changed):
        name = next(iter(again or changed))
        raise _refused(name, is_made=name in changed and changed[name].is_made)


def _is_unread(node: fx.Node) -> bool:
    return node.meta["val"].numel() == 0 or all(
        reads_shape_only(user)
        or _overwrites(user, node)
        or (user.target is torch.ops.aten.clone.default and _is_unread(user))
        for user in node.users
    )


def _overwrites(user: fx.Node, node: fx.Node) -> bool:
    return user.target is torch.ops.aten.copy_.default and user.all_input_nodes[1:] != [node]


def _texts(
    capture: Capture, names: Sequence[str], changed: Mapping[str, Resized]
) -> list[tuple[Any, ...]]:
    """Returns texts of the operations that matter for results and buffers, and of these."""
    graph = capture.graph
    sources = {source_of(node).name: node for node in graph.sources}
    results = [*capture.results, *(capture.assigned.get(name, sources.get(name)) for name in names)]
    matters = _reached(graph, results)
    describe = partial(_description, graph, changed)
    return [*computed(graph, changed.keys(), describe, results, lambda node: node not in matters)]


def _reached(graph: Graph, results: Iterable[fx.Node | None]) -> set[fx.Node]:
    """Returns the nodes that results, writes and random numbers depend on."""
    found = {node for node in results if node is not None}
    for node in reversed(graph.fx.nodes):
        if node.op == "output" or is_write_back(node):
            continue
        if node in found or is_mutating(node) or is_random(node):
            found |= {node, *node.all_input_nodes}
    return found


def _description(graph: Graph, changed: Mapping[str, Resized], node: fx.Node) -> str | None:
    """Returns type, shape and bits of a value, with the new values of changed buffers."""

    def value_of(source: fx.Node) -> torch.Tensor | None:
        found = changed.get(source_of(source).name)
        return None if found is None else found.value

    known = known_value(graph, node, value_of)
    if known is None:
        return None
    dtype = node.meta["val"].dtype
    return f"{dtype} {tuple(known.shape)} {bytes_of(known.to(dtype)).tolist()}"


def _refused(name: str, *, is_made: bool = False) -> Exception:
    event = "is first made" if is_made else "gets a value of another shape"
    return compiler_error(
        f"Buffer {name} {event} in forward, and it cannot be shown that the next call would "
        "compute the same. Call the model once on the CPU before it is wrapped, so that the buffer "
        f"has its shape, or register it with that shape in __init__; {Topic.REASSIGNED_STATE}"
    )
