"""Runs backward within a trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import fx

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.graph import Graph, record_of
from poptorch_emu.ir.mutation import is_mutating, memory_of, written_memory
from poptorch_emu.ir.record import Phase
from poptorch_emu.torch_versions import engine_run_backward
from poptorch_emu.troubleshooting import Topic

# Autograd's message about a saved value that was changed, with the value's shape and function.
_CHANGED = re.compile(
    r"modified by an inplace operation: \[\w+ \[(?P<shape>[\d, ]*)\]\]"
    r"(?:, which is output \d+ of (?P<function>\w+))?"
)


def differentiate(
    value: torch.Tensor,
    first_gradient: torch.Tensor,
    leaves: Sequence[torch.Tensor],
    graph: Graph,
) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradient of `value` for each leaf; None if `value` does not depend on the leaf.

    This is the core of `torch.autograd.grad`, which itself would leave the recorder's mode.

    Args:
        value: tensor that is differentiated.
        first_gradient: initial gradient, with the shape of `value`.
        leaves: tensors that require a gradient.
        graph: recorded operations of `forward`, whose lines an error names.

    Raises:
        Error: `forward` has already called backward, or has changed a value that backward needs.
    """
    keeps_graph = records_graph = False
    try:
        gradients: tuple[torch.Tensor | None, ...] = engine_run_backward(
            (value,),
            (first_gradient,),
            keeps_graph,
            records_graph,
            tuple(leaves),
            allow_unreachable=True,
            accumulate_grad=False,
        )
    except RuntimeError as failure:
        changed = _CHANGED.search(str(failure))
        if changed is not None:
            raise _changed_in_place(changed, graph) from failure
        if "backward through the graph a second time" not in str(failure):
            raise
        raise compiler_error(
            "forward has called backward() on the loss already, or on what the loss is made of. A "
            "model wrapped by poptorch.trainingModel runs backward itself: take the call out, or "
            f"write backward(retain_graph=True); {Topic.EXPLICIT_BACKWARD}"
        ) from failure
    return gradients


def _changed_in_place(found: re.Match[str], graph: Graph) -> Error:
    """Returns the error for a saved value that `forward` changed later."""
    shape = [int(size) for size in re.findall(r"\d+", found["shape"])]
    places = " or ".join([*dict.fromkeys(_lines_of_changes(shape, graph))][:3])
    maker = f" that {found['function']} computed" if found["function"] else ""
    return compiler_error(
        f"backward needs a value of shape {shape}{maker}, which forward "
        f"changes in place afterwards, at {places or 'an unknown line'}. PyTorch refuses it, "
        "too. Make a new tensor there, as x = x * 2 in place of x *= 2 and inplace=False in place "
        "of inplace=True, or change a clone()."
    )


def _lines_of_changes(shape: list[int], graph: Graph) -> Iterator[str]:
    """Yields the lines of `forward` that change values of a shape, or parts of them, in place."""
    owners: set[fx.Node] = set()
    for node in graph.fx.nodes:
        if record_of(node).phase is not Phase.FORWARD:
            continue
        if is_mutating(node) and owners & written_memory(node) and record_of(node).source:
            yield record_of(node).source
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and list(value.shape) == shape:
            owners.add(memory_of(node))
