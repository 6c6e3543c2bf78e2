"""Proof that autograd finds the compiled gradients, and search for values that gradients reach.

The compiled graph contains the backward of the user's program, including hooks, custom autograd
functions and detached values. Exported stages have PyTorch's autograd only. Therefore one
micro-batch is run forward and differentiated in both ways. The weights are shifted a little first,
because two different gradients may be equal at zero.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from poptorch_emu.errors import make_error
from poptorch_emu.export.forward import ForwardStages, is_forward
from poptorch_emu.export.rewriting import rewrite
from poptorch_emu.export.stage_module import Values, source_line
from poptorch_emu.ir.evaluate import in_own_types, run_on_host
from poptorch_emu.ir.graph import SinkKind, SourceKind, source_of

_HOST = torch.device("cpu")

# Tolerance relative to the largest element; both ways run nearly the same operations.
_TOLERANCE = 1e-3
_SHIFT = 0.01


def flowing_values(
    stages: ForwardStages, values: Values, inputs: Sequence[torch.Tensor]
) -> frozenset[fx.Node]:
    """Returns the values between stages that have a gradient.

    Args:
        stages: stages of a model that trains.
        values: tensors of the model.
        inputs: inputs of one micro-batch.

    Raises:
        Error: autograd finds another gradient for a parameter.
    """
    known = _sources(stages, values, inputs)
    _run_forward(stages, known)
    trained = {
        source_of(node).name: node
        for node in stages.graph.sources
        if isinstance(known.get(node), torch.Tensor) and known[node].requires_grad
    }
    sent = {node for wires in stages.wires for node in wires if known[node].requires_grad}
    asked = [*trained.values(), *sent]
    loss = known[stages.loss] if stages.loss is not None else None
    found: Sequence[torch.Tensor | None] = [None] * len(asked)
    if loss is not None and loss.requires_grad and asked:
        found = torch.autograd.grad(loss, [known[node] for node in asked], allow_unused=True)
    gradients = dict(zip(asked, found, strict=True))
    compiled = _compiled_gradients(stages, known)
    for name, node in trained.items():
        if not _agree(gradients[node], compiled.get(name)):
            raise _other_gradient(name, node)
    return frozenset(node for node in sent if gradients[node] is not None)


def _sources(
    stages: ForwardStages, values: Values, inputs: Sequence[torch.Tensor]
) -> dict[fx.Node, Any]:
    """Returns the values of all sources except the states of random numbers."""
    generator = torch.Generator().manual_seed(0)
    known: dict[fx.Node, Any] = {}
    for node in stages.graph.sources:
        source, fake = source_of(node), node.meta["val"]
        if source.kind is SourceKind.INPUT:
            known[node] = inputs[int(source.name)].detach().to(fake.dtype)
        elif source.kind is SourceKind.SCALAR:
            known[node] = torch.ones((), dtype=fake.dtype)
        elif source.name in values.parameters:
            parameter = values.parameters[source.name]
            shift = torch.randn(parameter.shape, generator=generator) * _SHIFT
            shifted = parameter.detach().cpu() + shift.to(parameter.dtype)
            known[node] = shifted.to(fake.dtype).requires_grad_(parameter.requires_grad)
        elif source.kind is SourceKind.VARIABLE:
            known[node] = values.buffers[source.name].detach().cpu().to(fake.dtype)
        elif source.kind is SourceKind.CONSTANT:
            known[node] = values.constants[source.name]
    return known


def _run_forward(stages: ForwardStages, known: dict[fx.Node, Any]) -> None:
    """Adds the value of each forward operation, with its autograd graph."""

    def call(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return target(*args, **kwargs)

    with torch.enable_grad(), in_own_types(), torch.random.fork_rng(devices=[]):
        for node in stages.graph.fx.nodes:
            if node.op == "call_function" and is_forward(node):
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.get)
                known[node] = rewrite(node, args, kwargs, _HOST, call)


def _compiled_gradients(
    stages: ForwardStages, forward: Mapping[fx.Node, Any]
) -> dict[str, torch.Tensor]:
    """Returns the gradients that the compiled backward computes from the same forward, by name."""
    known = dict(forward)
    with torch.no_grad():
        for node in stages.graph.fx.nodes:
            if node.op == "call_function" and node not in known:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
                is_selection = node.target is operator.getitem
                known[node] = (
                    args[0][args[1]] if is_selection else run_on_host(node.target, args, kwargs)
                )
    gradients = {s.name: n for s, n in stages.graph.results if s.kind is SinkKind.GRADIENT}
    return {name: known[node] for name, node in gradients.items()}


def _agree(found: torch.Tensor | None, compiled: torch.Tensor | None) -> bool:
    if found is None or compiled is None:
        return found is compiled
    ours, theirs = found.detach().double(), compiled.double()
    largest = theirs.nan_to_num().abs().max().item() if theirs.numel() else 0.0
    return torch.allclose(ours, theirs, rtol=0.0, atol=_TOLERANCE * largest, equal_nan=True)


def _other_gradient(name: str, node: fx.Node) -> Exception:
    readers = [user for user in node.users if is_forward(user)]
    line = source_line(readers[0]) if readers else "an unknown line"
    return make_error(
        f"The gradient of '{name}', read at {line}, is not the one that autograd takes of the "
        "exported operations: between this line and the loss there is a hook, a "
        "torch.autograd.Function, a custom operator with a backward of its own, torch.no_grad or "
        "detach. Export a model without it: freeze parameters by requires_grad_(False), and leave "
        "functions to autograd."
    )
