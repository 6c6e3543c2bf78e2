"""The key of a program: text that is equal if two compilations give the same program.

The key is computed after `forward` was recorded and before any costly step. The operations of
`forward` and autograd's graph determine backward, unless the user's code runs in backward (a Python
function, a hook). In that case backward is recorded first, and is a part of the key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import torch
from torch import fx

from poptorch_emu.config import CompileConfig
from poptorch_emu.engine import product_kernels
from poptorch_emu.ir.graph import Graph, SourceKind, record_of, source_of
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.ir.text import type_text
from poptorch_emu.tensor_bytes import bytes_of
from poptorch_emu.trace.capture.tracer import Forward
from poptorch_emu.update.formulas.optimizer_config import GroupConfig, Hyper, OptimizerConfig
from poptorch_emu.version import __version__

# Options that do not affect the program.
_HOST_OPTIONS = {
    "random_seed",
    "process_id",
    "synthetic_data",
    "cache_dir",
    "profile_dir",
    "model_name",
    "shows_progress_bar",
    "target",
    "ipu_id",
    "updatable_buffers",
    "max_repeat_logs",
    "max_guarded_programs",  # The operations show its effect.
    "cast_rules",  # The operations show their effect.
}

# Parts of the cache's key that may differ for an exported file: lines of the user's code, which
# messages name, and the processor, because other kernels may be faster there. A kernel that cannot
# run on a processor raises.
_PLACES, _PROCESSOR = "places in the code", "processor"

_NOT_COMPILED_IN = ("source", "attributes")
_RECORD_FIELDS = [item.name for item in fields(NodeRecord) if item.name not in _NOT_COMPILED_IN]
_PLAIN = {int, float, bool, str, type(None)}
_OWN_META = {"val", "record", "source"}


@dataclass(frozen=True)
class Key:
    """Description of everything that affects a program: lines of text in named parts.

    Attributes:
        parts: lines of each part, from the user's choices to their consequences.
    """

    parts: Mapping[str, tuple[str, ...]]

    @property
    def digest(self) -> str:
        """A short text that differs between keys."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def difference(self, other: Key) -> str:
        """Returns a text with the first difference that affects the program, or ""."""
        for part, lines in self.parts.items():
            if part in (_PLACES, _PROCESSOR):
                continue
            for mine, yours in zip_longest(lines, other.parts.get(part, ()), fillvalue="nothing"):
                if mine != yours:
                    return f"their {part} differ: '{mine}' there, '{yours}' here"
        return ""

    @cached_property
    def text(self) -> str:
        """The key as JSON, which differs between keys."""
        return json.dumps(self.parts)

    @staticmethod
    def from_json(text: str | bytes) -> Key:
        """Returns the key from its `text`."""
        return Key({part: tuple(lines) for part, lines in json.loads(text).items()})


def key_of(
    forward: Forward,
    config: CompileConfig,
    tensors: Sequence[torch.Tensor],
    optimizer: OptimizerConfig | None,
    parameters: Sequence[str],
) -> Key:
    """Returns the key of the program of a recorded `forward`.

    Args:
        forward: recorded `forward`. Its backward is recorded if the key needs it.
        config: configuration of the compilation.
        tensors: input tensors, as whole batches.
        optimizer: configuration of the optimiser; None in inference.
        parameters: names of the parameters in the optimiser's order.
    """
    differentiated = forward.backward_lines
    graph = forward.graph
    numbers = {node: f"%{index}" for index, node in enumerate(graph.fx.nodes)}
    outputs = [f"{sink} <- {numbers[node]}" for sink, node in forward.results]
    losses = [f"loss <- {numbers[node]}" for _, node in forward.losses]
    return Key(
        {
            "versions": (f"poptorch_emu {__version__}", f"torch {torch.__version__}"),
            _PROCESSOR: (repr(product_kernels.this_processor()),),
            "options": tuple(_option_lines(config)),
            "inputs": tuple(type_text(tensor) for tensor in tensors),
            "parameters and buffers": tuple(_source_lines(graph, forward)),
            "optimizers": tuple(_optimizer_lines(optimizer, parameters)),
            "operations": (*_operation_lines(graph, numbers), *outputs, *losses),
            "bodies of loops and branches": tuple(_region_lines(graph)),
            "gradients": differentiated,
            _PLACES: tuple(
                record_of(node).source for node in graph.fx.nodes if node.op != "output"
            ),
        }
    )


def _option_lines(config: CompileConfig) -> Iterator[str]:
    for item in fields(config):
        if item.name not in _HOST_OPTIONS:
            yield f"{item.name}={getattr(config, item.name)!r}"


def _optimizer_lines(optimizer: OptimizerConfig | None, parameters: Sequence[str]) -> Iterator[str]:
    """Yields lines about the optimiser; variable hyper-parameters only have their name."""
    if optimizer is None:
        return
    for item in fields(optimizer):
        value = getattr(optimizer, item.name)
        if item.name == "groups":
            value = tuple(_without_variables(group) for group in value)
        elif isinstance(value, Hyper):
            value = _without_value(value)
        yield f"{item.name}={value!r}"
    yield from parameters


def _without_variables(group: GroupConfig) -> GroupConfig:
    return replace(
        group, hypers=tuple((name, _without_value(hyper)) for name, hyper in group.hypers)
    )


def _without_value(hyper: Hyper) -> Hyper:
    return hyper if hyper.is_constant else replace(hyper, value=0.0)


def _source_lines(graph: Graph, forward: Forward) -> Iterator[str]:
    for node in graph.sources:
        source = source_of(node)
        line = f"{source}: {type_text(node.meta['val'])}"
        if source.kind is SourceKind.CONSTANT and source.name not in forward.batch_counts:
            line += f" of value {_tensor_digest(graph.constants[source.name])}"
        elif source.kind is SourceKind.VARIABLE and source.name in forward.parameters:
            line += ", trained"
        yield line


def _tensor_digest(value: torch.Tensor) -> str:
    data = bytes_of(value.cpu()).numpy()
    return hashlib.sha256(data.data).hexdigest()[:16]


def _operation_lines(graph: Graph, numbers: Mapping[fx.Node, str]) -> Iterator[str]:
    origins: dict[int, str] = {}
    for node in graph.fx.nodes:
        if node.op != "call_function":
            continue
        record = record_of(node)
        if id(record) not in origins:
            origins[id(record)] = repr(tuple(getattr(record, name) for name in _RECORD_FIELDS))
        own = node.meta.keys() <= _OWN_META
        more = "" if own else {k: v for k, v in node.meta.items() if k not in _OWN_META}
        args, kwargs = _text(node.args, numbers), _text(node.kwargs, numbers)
        yield (
            f"{numbers[node]} = {node.target}({args}, {kwargs}) -> {type_text(node.meta['val'])} "
            f"# {origins[id(record)]} {more}"
        )


def _region_lines(graph: Graph) -> Iterator[str]:
    """Yields lines about the bodies of loops and branches in `graph`."""
    for name, region in graph.regions.items():
        yield f"{name}, which repeats '{region.repeats}':"
        numbers = {node: f"%{index}" for index, node in enumerate(region.fx.nodes)}
        for node in region.sources:
            yield f"{numbers[node]} = {source_of(node)}: {type_text(node.meta['val'])}"
        yield from _operation_lines(region, numbers)
        yield from (f"{sink} <- {numbers[node]}" for sink, node in region.results)


def _text(value: Any, numbers: Mapping[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return numbers[value]
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_text(item, numbers) for item in value)}]"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_text(item, numbers)}" for key, item in value.items())
    return repr(value)
