"""Records every ATen operation that runs on fake tensors of device `ipu:0` into a `Graph`.

It sits below autograd, so it sees what forward, backward and the optimiser's rule come down to. It
does not decide where an operation belongs: `origin` tells it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorDeviceMismatchError,
)
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from poptorch_emu.ir.graph import Graph, Source, SourceKind
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.trace import refusal

aten = torch.ops.aten
IPU = torch.device("ipu:0")

# Operations that say something about a tensor and leave nothing to run.
_DEVICE = torch.ops.prim.device.default
_QUERIES = {_DEVICE, aten.sym_size.int, aten.sym_stride.int}

# Operations whose schema does not say that they change an argument, and their twins that do.
_HONEST_TWINS = {aten.native_batch_norm.default: aten._native_batch_norm_legit.default}


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes what runs into `graph`; to be entered inside a `FakeTensorMode`."""

    def __init__(self, graph: Graph, origin: Callable[[], NodeRecord]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph
        self.origin = origin
        # The tensor is kept beside its node, so that its id is never given to another one.
        self._nodes: dict[int, tuple[torch.Tensor, fx.Node]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Traces are not compiled by Dynamo, so the guard against it is only slow."""
        return False

    def add_source(self, source: Source, value: torch.Tensor, record: NodeRecord) -> fx.Node:
        """Makes `value` a placeholder of the graph."""
        node = self.graph.add_source(source, value, record)
        self._nodes[id(value)] = (value, node)
        return node

    def find(self, value: torch.Tensor) -> fx.Node | None:
        """Returns the node that made `value`, or `None` for a tensor this recorder never saw."""
        entry = self._nodes.get(id(value))
        return entry[1] if entry else None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs `func` on the fakes and appends it to the graph."""
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # Asked several times for each operation.
        kwargs = _with_device_index(kwargs or {})
        if func in _QUERIES:
            return func(*args, **kwargs)
        refusal.check(func, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as cause:
            raise refusal.data_dependent(func) from cause
        except FakeTensorDeviceMismatchError as cause:
            raise refusal.foreign_tensor(_on_host((args, kwargs))) from cause
        if _is_on_ipu(result) or _is_on_ipu(args):
            self._append(_recorded_as(func, args), args, kwargs, result)
        return result

    def _append(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        record = self.origin()
        node_args, node_kwargs = map_aggregate(
            (args, kwargs),
            lambda value: (
                self._node_of(value, record) if isinstance(value, torch.Tensor) else value
            ),
        )
        node = self.graph.add_operation(func, node_args, node_kwargs, result, record)
        if isinstance(result, torch.Tensor):
            self._nodes[id(result)] = (result, node)
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    selected = self.graph.add_operation(
                        operator.getitem, (node, index), {}, item, record
                    )
                    self._nodes[id(item)] = (item, selected)

    def _node_of(self, tensor: torch.Tensor, record: NodeRecord) -> fx.Node:
        node = self.find(tensor)
        if node is not None:
            return node
        value = tensor.constant if isinstance(tensor, FakeTensor) else tensor
        if value is None:
            raise refusal.foreign_tensor(tensor)
        name = str(len(self.graph.constants))
        self.graph.constants[name] = value
        return self.add_source(Source(SourceKind.CONSTANT, name), tensor, record)


def _with_device_index(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """`ipu` and `ipu:0` do not compare equal in PyTorch; only the second is used."""
    device = kwargs.get("device")
    if isinstance(device, torch.device) and device.type == "ipu" and device.index is None:
        return {**kwargs, "device": IPU}
    return dict(kwargs)


def _is_on_ipu(values: Any) -> bool:
    if isinstance(values, torch.Tensor):
        return _device_of(values).type == "ipu"
    return isinstance(values, (tuple, list)) and any(map(_is_on_ipu, values))


def _device_of(tensor: torch.Tensor) -> torch.device:
    """Returns the device, of a fake without the dispatch that `tensor.device` would be."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


def _on_host(values: Any) -> torch.Tensor:
    """Returns the tensor that is not on the IPU."""
    return next(
        value
        for value in pytree.tree_iter(values)
        if isinstance(value, torch.Tensor) and value.device.type != "ipu"
    )


def _recorded_as(func: Any, args: tuple[Any, ...]) -> Any:
    """Returns the operation to write down for `func`.

    `native_batch_norm` updates its running statistics (arguments 3 and 4) without saying so.
    """
    twin = _HONEST_TWINS.get(func)
    return twin if twin is not None and args[3] is not None and args[5] else func
