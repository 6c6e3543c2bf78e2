"""Tensors that `forward` stores outside, in attributes, caches and globals, as fake tensors.

A plain call stores values there for the next call. So after a trace, each fake tensor is replaced
by its value if that is known (a table, a mask, a parameter), otherwise by the earlier object.
Before that, the model is captured again, as in a second call, which must not use the unknown ones.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import fx
from torch.utils.weak import WeakIdKeyDictionary

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.graph import Graph, record_of
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.log import logger
from poptorch_emu.torch_versions import FakeTensor, pytree
from poptorch_emu.trace.places.holders import Location, Search, contents_of
from poptorch_emu.troubleshooting import Topic

_UNKNOWN = object()
_HOST = torch.device("cpu")
_MAX_NAMED = 8
_ARGUMENTS = "arguments"  # Name of the call's arguments in locations.
# Values that have replaced fake tensors. The next trace uses them as constants.
_values = WeakIdKeyDictionary()
_OF_TORCH = frozenset(vars(torch.nn.Module()))  # Attributes of every module.

ValueOf = Callable[[torch.Tensor], torch.Tensor | None]


def is_left_by_trace(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor of the host has replaced a fake tensor."""
    return tensor in _values or tensor._base in _values


class LeftTensors:
    """The objects that a model and its code held before a trace."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._before: dict[int, tuple[Any, dict[Any, Any]]] = {}
        self._find: Callable[[], list[Location]] = list
        # Lines that computed the tensors with and without known values, by their locations.
        self.known: dict[str, str] = {}
        self.unknown: dict[str, str] = {}
        self.in_arguments: dict[str, str] = {}
        for holder in (*_namespaces(model), *model.modules()):
            self._keep(holder)

    def replace(
        self, value_of: ValueOf, graph: Graph, arguments: Any, ours: Sequence[torch.Tensor]
    ) -> None:
        """Replaces fake tensors whose values are known, and stores locations and lines of others.

        Args:
            value_of: returns the value of a fake tensor; None if it is unknown.
            graph: recorded graph.
            arguments: arguments of the call.
            ours: fake tensors that the trace holds beside the graph, once for each reference.
        """
        if not (self._has_new_device() or _are_held_elsewhere(graph, ours)):
            return
        names = {id(module): name for name, module in self._model.named_modules()}
        roots = [(names[id(module)], module) for module in self._model.modules()]
        files = _files_of(graph)
        namespaces = [*_namespaces(self._model), *_namespaces_of_files(files)]
        roots += [(_name(each), each) for each in namespaces]
        roots.append((_ARGUMENTS, arguments))
        self._find = lambda: list(Search(_is_of_trace, files).run(roots))
        for location in reversed(self._find()):  # Reversed: removal shifts later indices.
            value = _converted(location.value, value_of)
            if value == _HOST:
                self._replace_device(location)
            elif value is not _UNKNOWN:
                self.known[location.path] = _line_of(location.value, graph)
                location.put(value)
            elif location.path.startswith(_ARGUMENTS):  # The next call has others.
                self.in_arguments[location.path] = _line_of(location.value, graph)
                self._restore(location)
            else:
                self.unknown[location.path] = _line_of(location.value, graph)

    def restore(self) -> None:
        """Replaces the tensors without known values by earlier objects."""
        for location in reversed(self._find() if self.unknown else []):
            self._restore(location)

    def _keep(self, holder: Any) -> None:
        """Stores the content of a holder, and of the containers in it."""
        if id(holder) in self._before:
            return
        held = dict(contents_of(holder))
        self._before[id(holder)] = holder, held
        is_namespace = isinstance(holder, type) or "__builtins__" in held
        for key, value in held.items() if not is_namespace else ():
            if isinstance(value, (dict, list, deque)) and key not in _OF_TORCH:
                self._keep(value)

    def _has_new_device(self) -> bool:
        return any(
            _is_device(value) and held.get(key) != value
            for holder, held in self._before.values()
            for key, value in contents_of(holder)
        )

    def _replace_device(self, location: Location) -> None:
        """Replaces a device that `forward` read from an input by the CPU, as in a plain call."""
        _, held = self._before.get(id(location.holder), (None, {location.key: location.value}))
        if held.get(location.key) != location.value:
            location.put(_HOST)

    def _restore(self, location: Location) -> None:
        """Restores the object that was there before the trace."""
        _, held = self._before.get(id(location.holder), (None, {}))
        is_sequence = isinstance(location.holder, (list, deque))
        if location.key in held and (not is_sequence or len(held) == len(location.holder)):
            location.put(held[location.key])
        elif id(location.holder) in self._before and not isinstance(
            location.holder, (dict, list, deque)
        ):
            delattr(location.holder, location.key)
        else:
            location.take()


def _is_of_trace(value: Any) -> bool:
    return issubclass(type(value), FakeTensor) or _is_device(value)


def _is_device(value: Any) -> bool:
    return type(value) is torch.device and value.type == "ipu"


def _are_held_elsewhere(graph: Graph, ours: Sequence[torch.Tensor]) -> bool:
    """Returns whether another object may hold a fake tensor, to avoid a slow search if not."""
    stand_ins: list[Any] = list(_stand_ins(graph))
    # Counts references by the graph's nodes, the trace, and the lists of this function.
    known = Counter(map(id, chain(stand_ins, stand_ins, ours, ours)))
    # Further references come from the loop, from `getrefcount` and possibly from C++.
    return any(
        sys.getrefcount(each) - 2 - (each._use_count() > 1) > known[id(each)] for each in stand_ins
    )


def _stand_ins(graph: Graph) -> Iterator[FakeTensor]:
    """Yields the results in a graph and its regions, once for each node that holds them."""
    return (leaf for leaf, _ in _values_of(graph))


def _values_of(graph: Graph) -> Iterator[tuple[FakeTensor, fx.Node]]:
    for each in (graph, *graph.regions.values()):
        for node in each.fx.nodes:
            value = node.meta.get("val")
            for leaf in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(leaf, FakeTensor):
                    yield leaf, node


def _line_of(value: Any, graph: Graph) -> str:
    """Returns the user's line that computed a fake tensor, or one in a tuple; "" if unknown."""
    wanted = {id(leaf) for leaf in pytree.tree_leaves(value)}
    nodes = (node for leaf, node in _values_of(graph) if id(leaf) in wanted)
    return next((record_of(node).source for node in nodes if record_of(node).source), "")


def _converted(value: Any, value_of: ValueOf) -> Any:
    """Returns the replacement of a fake tensor, or of a tuple that contains fake tensors."""
    if type(value) is torch.device:
        return _HOST
    if issubclass(type(value), FakeTensor):
        known = value_of(value)
        if known is None:
            return _UNKNOWN
        _values[known] = True
        return known
    if not isinstance(value, (tuple, frozenset)):
        return value
    parts = [_converted(each, value_of) for each in value]
    if any(part is _UNKNOWN for part in parts):
        return _UNKNOWN
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def _namespaces(model: torch.nn.Module) -> Iterator[Any]:
    """Yields the classes of a model's modules, except PyTorch's, and the globals of their files."""
    for cls in {cls: None for module in model.modules() for cls in type(module).__mro__}:
        if cls is not object and cls.__module__.partition(".")[0] not in ("torch", "poptorch_emu"):
            yield cls
            if cls.__module__ in sys.modules:
                yield vars(sys.modules[cls.__module__])


def _files_of(graph: Graph) -> set[str]:
    """Returns the files of the user's code whose operations were recorded."""
    records = [node.meta.get("record", NodeRecord()) for node in graph.fx.nodes]
    return {source.rpartition(":")[0] for source in {record.source for record in records}}


def _namespaces_of_files(files: set[str]) -> Iterator[Any]:
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) in files:
            yield vars(module)


def _name(namespace: Any) -> str:
    if isinstance(namespace, type):
        return namespace.__qualname__
    return str(namespace["__name__"])


def warn(lines: dict[str, str]) -> None:
    """Warns about tensors that are lost, by their locations and the lines that computed them."""
    logger.warning(
        "forward leaves tensors in %s, but their values only exist when the model runs: the "
        "values from before the model was traced were restored, and no call changes them. Return "
        "such tensors from forward, or keep them in a buffer (register_buffer in __init__, copy_ "
        "in forward); %s",
        _named(lines),
        Topic.LEFT_TENSORS,
    )


def refused(lines: dict[str, str]) -> Error:
    """Returns the error for tensors that a second call would use, but no compiled one."""
    return compiler_error(
        f"forward leaves tensors in {_named(lines)}, and a second call computes something else "
        "with them. A model is captured in its first call, and later calls repeat that one. Keep "
        "them in a buffer (register_buffer in __init__, copy_ in forward), switch the cache off "
        "(cached=False in torch_geometric), or call the model once on the CPU before it is "
        "wrapped, so that the kept values are "
        f"constants; {Topic.LEFT_TENSORS}"
    )


def _named(lines: dict[str, str]) -> str:
    names = [f"{path} (computed at {line})" if line else path for path, line in lines.items()]
    names.sort()
    rest = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {rest} more places" if rest > 0 else "")
