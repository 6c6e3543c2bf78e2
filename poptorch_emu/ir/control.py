"""Operators that run another graph or the host: loops, branches, host calls.

A node of `for_loop` or `cond` names its bodies. Each body is a *region*, a `Graph` in
`Graph.regions`. The sources of a region are INPUT "0", "1", ... for its parameters in order and, in
a loop, ITERATION. Its sinks are OUTPUT "0", "1", ... . Every outer value is a parameter, and the
values that a body captures come last.

This file has the schemas and shapes. `csrc/runtime/executor/frame.cpp` runs the operators.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.text import type_text
from poptorch_emu.torch_versions import OpOverload

# The results of a loop are the carried tensors after the last iteration, then each further result
# of its body, stacked over all iterations. The body gets one row of a scanned tensor in each
# iteration; a reversed loop visits the rows from last to first.
torch.library.define(
    "poptorch_emu::for_loop",
    "(str body, int count, bool is_reversed, Tensor[] carried, Tensor[] scanned, "
    "Tensor[] captured, str[] collected) -> Tensor[]",
)
torch.library.define(
    "poptorch_emu::cond",
    "(Tensor condition, str then_body, str else_body, Tensor[] then_captured, "
    "Tensor[] else_captured, str[] results) -> Tensor[]",
)
torch.library.define(
    "poptorch_emu::host_call", "(str callback, Tensor[] inputs, str[] results) -> Tensor[]"
)

FOR_LOOP: OpOverload = torch.ops.poptorch_emu.for_loop.default
COND: OpOverload = torch.ops.poptorch_emu.cond.default
HOST_CALL: OpOverload = torch.ops.poptorch_emu.host_call.default

_IPU = torch.device("ipu:0")
_TYPE = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]")

# For each region of a node: the index of the argument with its name, and of its captured values.
_REGION_ARGUMENTS = {FOR_LOOP: ((0, 5),), COND: ((1, 3), (2, 4))}


@torch.library.register_fake("poptorch_emu::for_loop")  # type: ignore[untyped-decorator]
def _for_loop(
    body: str,
    count: int,
    is_reversed: bool,
    carried: Sequence[torch.Tensor],
    scanned: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    collected: Sequence[str],
) -> list[torch.Tensor]:
    finals = [empty(type_text(tensor)) for tensor in carried]
    return [*finals, *(_stacked(text, count) for text in collected)]


@torch.library.register_fake("poptorch_emu::cond")  # type: ignore[untyped-decorator]
def _cond(
    condition: torch.Tensor,
    then_body: str,
    else_body: str,
    then_captured: Sequence[torch.Tensor],
    else_captured: Sequence[torch.Tensor],
    results: Sequence[str],
) -> list[torch.Tensor]:
    return [empty(text) for text in results]


@torch.library.register_fake("poptorch_emu::host_call")  # type: ignore[untyped-decorator]
def _host_call(
    callback: str, inputs: Sequence[torch.Tensor], results: Sequence[str]
) -> list[torch.Tensor]:
    return [empty(text) for text in results]


def region_names(node: fx.Node) -> list[str]:
    """Returns the names of the regions that `node` runs: the body, or both branches."""
    return [str(node.args[name]) for name, _ in _region_arguments(node)]


def add_captured(node: fx.Node, position: int, value: fx.Node) -> int:
    """Adds a captured value to the region at `position` of `node`; returns its parameter number."""
    _, index = _region_arguments(node)[position]
    before = _tensors(node, index)
    node.update_arg(index, [*before, value])
    others = (3, 4) if node.target is FOR_LOOP else ()
    return len(before) + sum(len(_tensors(node, other)) for other in others)


def _region_arguments(node: fx.Node) -> tuple[tuple[int, int], ...]:
    target: Any = node.target
    return _REGION_ARGUMENTS.get(target, ())


def _tensors(node: fx.Node, index: int) -> Sequence[Any]:
    tensors = node.args[index]
    assert isinstance(tensors, (list, tuple)), "the parameters of a region are lists"
    return tensors


def empty(text: str) -> torch.Tensor:
    """Returns an empty tensor on the IPU of the type that `type_text` wrote as `text`."""
    match = _TYPE.fullmatch(text)
    assert match is not None, f"{text} is not the type of a tensor"
    shape = [int(size) for size in match["shape"].split(",") if size.strip()]
    return torch.empty(shape, dtype=getattr(torch, match["dtype"]), device=_IPU)


def _stacked(text: str, count: int) -> torch.Tensor:
    return empty(text.replace("[", f"[{count}, ").replace(", ]", "]"))
