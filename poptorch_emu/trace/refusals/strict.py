"""Strict mode: reports where the real compiler would stop, for models meant for hardware.

Strict mode is off by default. `POPTORCH_EMU_STRICT=warn` logs a warning for each place in a
recorded graph, and `=error` raises one error for all places. Only forward operations are checked,
because the real compiler makes its own gradients.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import fx

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.ir.graph import Graph, record_of, tensors_of
from poptorch_emu.ir.mutation import written_values
from poptorch_emu.ir.record import Phase
from poptorch_emu.log import logger
from poptorch_emu.module_loading import LateModule
from poptorch_emu.trace.values.known_values import known_value
from poptorch_emu.troubleshooting import Topic

if TYPE_CHECKING:
    from poptorch_emu.trace.refusals import strict_table
else:
    strict_table = LateModule("poptorch_emu.trace.refusals.strict_table")

# Environment variable for the reaction to a finding; unset means "off".
STRICT = "POPTORCH_EMU_STRICT"


def is_on() -> bool:
    """Returns whether `POPTORCH_EMU_STRICT` asks for a report.

    Raises:
        ValueError: the environment variable has an unknown value.
    """
    mode = os.environ.get(STRICT, "")
    if mode not in ("", "off", "warn", "error"):
        raise ValueError(f"{STRICT} is {mode!r}; set it to 'warn', 'error' or 'off'.")
    return mode in ("warn", "error")


def raises_errors() -> bool:
    """Returns whether uses that PopTorch rejects raise an error."""
    return os.environ.get(STRICT, "") == "error"


def check(graph: Graph) -> None:
    """Reports uses that the real compiler rejects, as `POPTORCH_EMU_STRICT` demands.

    Raises:
        Error: the mode is "error", and the graph has such a use.
    """
    mode = os.environ.get(STRICT, "")
    found = list(dict.fromkeys(findings(graph)))
    if mode == "warn":
        for finding in found:
            logger.warning("%s", finding)
    elif found:
        raise compiler_error(
            f"{len(found)} places where the real compiler would have stopped ({STRICT}=error; "
            "change them, or unset it to run them here):\n"
            + "\n".join([*found, str(Topic.STRICT_MODE)])
        )


def findings(graph: Graph) -> Iterator[str]:
    """Yields one line of text for each finding, with operator, module and the user's line."""
    layers: set[tuple[str, str]] = set()
    calls = {0}
    for node in graph.operations:
        record = record_of(node)
        if record.phase is not Phase.FORWARD:
            continue
        name = _name_of(node)
        for text in _faults(graph, node, name):
            yield _line(node, text)
        if record.recomputed_call not in calls:
            calls.add(record.recomputed_call)
            yield _line(
                node,
                "torch.utils.checkpoint has no meaning there; use poptorch.recomputationCheckpoint",
            )
        if name == "rnn_layer" and node.args[3] == "lstm":
            place = (record.module, record.source)
            if place in layers:
                yield _line(node, "Only LSTM with 1 layer supported")
            layers.add(place)


def _faults(graph: Graph, node: fx.Node, name: str) -> Iterator[str]:
    known = strict_table.HANDLED | strict_table.EQUIVALENT
    if name not in known and str(node.target).startswith("aten."):
        yield f"Unsupported ops found in compiled model: [aten::{name}]"
    if name in ("triu", "tril") and known_value(graph, node) is None:
        yield f"torch.{name} is only supported within constant expressions"
    if name.startswith("embedding_bag") and known_value(graph, _offsets_of(node)) is None:
        yield "Unsupported aten::embedding_bag operation: the offsets tensor must be a constant."
    if any(map(_is_in_steps, written_values(node))):
        yield "In-place modification of slices with step size other than 1"
    if name.startswith("max_pool") and any(user.args[1] == 1 for user in _selections(node)):
        yield "return_indices=True of max pooling is unsupported"
    for value in tensors_of([node]):
        if value.is_complex():
            yield f"Unsupported scalar type `{value.dtype}'"
    for value in _values_in_use(node):
        if value.numel() == 0:
            yield f"Zero-sized tensors are unsupported (Got shape {list(value.shape)})"
    call = _arguments(node)
    for restriction in strict_table.RESTRICTIONS:
        if name in restriction.operators and restriction.is_violated(call):
            yield restriction.text


def _offsets_of(node: fx.Node) -> fx.Node:
    offsets = node.args[2]
    assert isinstance(offsets, fx.Node), "aten::_embedding_bag(weight, indices, offsets, ...)"
    return offsets


def _is_in_steps(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.slice.Tensor and _arguments(node)["step"] != 1


def _name_of(node: fx.Node) -> str:
    return str(node.target._schema.name).partition("::")[2].strip("_")  # type: ignore[union-attr]


def _values_in_use(node: fx.Node) -> list[torch.Tensor]:
    """Returns the results that forward uses, without those only PyTorch or backward needs."""
    selections = [node] if isinstance(node.meta["val"], torch.Tensor) else node.users
    return [each.meta["val"] for each in selections if any(map(_is_forward, each.users))]


def _is_forward(user: fx.Node) -> bool:
    return user.op == "output" or record_of(user).phase is Phase.FORWARD


def _selections(node: fx.Node) -> list[fx.Node]:
    """Returns the used nodes that select one of several results of `node`."""
    return [user for user in node.users if user.users] if len(list(tensors_of([node]))) > 1 else []


def _arguments(node: fx.Node) -> strict_table.Call:
    """Returns the arguments by name, with defaults and with fake tensors."""
    call = vars(arguments_of(node))
    return {
        name: value.meta["val"] if isinstance(value, fx.Node) else value
        for name, value in call.items()
    }


def _line(node: fx.Node, text: str) -> str:
    record = record_of(node)
    module = f"module '{record.module}'" if record.module else "the model"
    operator = str(node.target._schema.name)  # type: ignore[union-attr]
    return f"{operator} in {module} at {record.source}: {text}"
