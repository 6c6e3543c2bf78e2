"""Finds the loss in the graph, as PopTorch does, and not among the outputs of `forward`.

Each call of a built-in loss function or of `identity_loss` leaves a mark. The last marked value is
the loss if it depends on all others, which then are ordinary reductions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import fx

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.graph import operation_of, record_of
from poptorch_emu.log import logger
from poptorch_emu.trace.places.source_line import return_line
from poptorch_emu.trace.values.known_values import ancestors
from poptorch_emu.troubleshooting import Topic


class _OfThread(threading.local):
    """The marks of the trace that a thread runs; `None` without one."""

    marks: list[tuple[torch.Tensor, str]] | None = None


_of_thread = _OfThread()


def start_marks() -> None:
    """Begins to collect the losses of a trace."""
    _of_thread.marks = []


def mark(value: torch.Tensor, name: str) -> None:
    """Notes that the function `name` computed `value` as a loss; only within a trace."""
    if _of_thread.marks is not None:
        _of_thread.marks.append((value, name))


def take_marks() -> list[tuple[torch.Tensor, str]]:
    """Ends the collection; returns the losses in the order they were computed, with their names."""
    marks, _of_thread.marks = _of_thread.marks or [], None
    return marks


def take_losses(
    find: Callable[[torch.Tensor], fx.Node | None],
) -> list[tuple[torch.Tensor, fx.Node]]:
    """Returns the losses that have a node, and stores the name of the loss in the node."""
    losses = []
    for value, name in take_marks():
        node = find(value)
        if node is not None:
            node.meta["loss"] = name
            losses.append((value, node))
    return losses


def final_loss(nodes: Sequence[fx.Node]) -> int:
    """Returns the index of the loss that depends on all others.

    Args:
        nodes: nodes of the marked values in the order of their computation; at least one.

    Raises:
        Error: no marked value depends on all others.
    """
    last = len(nodes) - 1
    needed = ancestors(nodes[last])
    independent = [node for node in nodes if node not in needed]
    if independent:
        places = ", ".join(node.meta["record"].source or node.name for node in nodes)
        raise compiler_error(
            f"Multiple independent losses found in graph (at {places}): a training model has one "
            "final loss. Combine them and wrap the result in poptorch.identity_loss; "
            f"{Topic.SEVERAL_LOSSES}"
        )
    return last


def missing(outputs: Sequence[fx.Node], forward: Callable[..., object]) -> Error:
    """Returns the error for a training model without a loss.

    Args:
        outputs: nodes of the outputs of `forward`. A scalar among them is probably the loss.
        forward: the model's `forward`.
    """
    line = return_line(forward)
    place = f" What forward returns is at {line}." if line else ""
    for node in outputs:
        value = node.meta["val"]
        if value.dim() == 0 and value.is_floating_point():
            made = record_of(node).source or "an unknown line"
            place += f" It has a scalar, made at {made}: is that the loss?"
            break
    return compiler_error(
        f"Couldn't find a loss in graph!{place} A training model needs one: call a loss function "
        "of torch.nn.functional (or a torch.nn loss) in forward, or wrap the value to minimise, as "
        f'in poptorch.identity_loss(loss, reduction="mean"); {Topic.NO_LOSS}'
    )


def note(node: fx.Node) -> None:
    """Notes in the record of the operation of `node` that it computes the loss."""
    operation = operation_of(node)
    operation.meta["record"] = replace(record_of(operation), is_loss=True)


def warn_of_lost_operations(node: fx.Node) -> None:
    """Warns if forward computes with the loss, because later operations have no gradient."""
    users = [user for user in node.users if user.target is not torch.ops.aten.detach.default]
    if users:
        logger.warning(
            "The loss that drives back-propagation is %s at %s; a value that forward computes "
            "from it afterwards (%s) has no part in the gradients. Wrap the value to minimise in "
            "poptorch.identity_loss if it should have; %s",
            node.meta.get("loss", node.name),
            node.meta["record"].source or "an unknown line",
            ", ".join(user.name for user in users),
            Topic.AFTER_THE_LOSS,
        )
