"""Records every ATen operation that runs on fake tensors of device `ipu:0` into a `Graph`.

The recorder runs below autograd, so that it sees the operations of forward, backward and the
optimiser's rule. The callback `origin` decides where an operation belongs.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from poptorch_emu.ir.graph import Graph, Source, SourceKind
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.torch_versions import (
    DataDependentOutputException,
    DisableTorchFunction,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorDeviceMismatchError,
    TorchDispatchMode,
    disable_current_modes,
    pytree,
)
from poptorch_emu.trace.fakes import result_types
from poptorch_emu.trace.fakes.result_memo import ResultMemo
from poptorch_emu.trace.places.recorded_scope import Scope
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.recording.argument_devices import is_fake_on_host, is_host_only, is_on_ipu
from poptorch_emu.trace.recording.host_moves import staying, with_constants
from poptorch_emu.trace.recording.host_writes import HostWrites, check_arguments
from poptorch_emu.trace.recording.index_types import widened
from poptorch_emu.trace.refusals import refusal
from poptorch_emu.trace.refusals.value_checks import outcome_of_check, warn_of_assertion
from poptorch_emu.trace.values import integer_state
from poptorch_emu.trace.values.host_backed import HostBacked, check_not_written
from poptorch_emu.trace.values.known_tensors import KnownTensors, Read, host_value, reads_nothing

aten = torch.ops.aten
IPU = torch.device("ipu:0")
_DEVICES = {"cpu", "ipu", "meta"}  # Operations on meta tensors run nowhere.

# Operations that return metadata of a tensor, so that nothing is recorded for them.
_DEVICE = torch.ops.prim.device.default
_QUERIES = {_DEVICE, aten.sym_size.int, aten.sym_stride.int}

# Operations that accept indices on the CPU also for a tensor on another device.
_INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}

# Operations whose results have shapes that depend on data.
_OF_DYNAMIC_SHAPE = {
    aten.nonzero.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.masked_select.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
}

# Symbolic zeros of forward-mode derivatives, which PyTorch reads, become ordinary zeros.
_PLAIN_TWINS = {aten._efficientzerotensor.default: aten.zeros.default}

# Operations whose schema hides a change of an argument, with variants that declare it.
_HONEST_TWINS = {aten.native_batch_norm.default: aten._native_batch_norm_legit.default}


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def as_given(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Returns the arguments of an operation unchanged."""
    return args, dict(kwargs)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Appends each operation that runs to a graph; to be entered inside a `FakeTensorMode`.

    Attributes:
        known: table of the values of tensors that do not depend on inputs.
        memo: metadata of results that are known already.
        equals: returns the result of `torch.equal` when a function of PyTorch checks its data.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns False. Dynamo never compiles a trace, so its guard would only cost time."""
        return False

    def __init__(
        self,
        graph: Graph,
        origin: Callable[[str], NodeRecord],
        narrow: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Arguments] = as_given,
        memo: ResultMemo | None = None,
        check_constant: Callable[[torch.Tensor], None] = lambda _: None,
        read: Read = reads_nothing,
    ) -> None:
        """Makes a recorder that appends to `graph`.

        Args:
            graph: graph that operations are appended to.
            origin: returns the record of an operation from its name; "" stands for a constant.
            narrow: returns changed arguments of an operation before it runs.
            memo: metadata of results that are known already; by default none.
            check_constant: raises if a tensor of the host must not become a constant.
            read: returns a value that depends on inputs if that is allowed, otherwise None.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._narrow = narrow
        self.origin = origin
        self._scopes = [Scope(graph)]
        self.memo = memo or ResultMemo(IPU)
        self._check_constant = check_constant
        self._host_writes = HostWrites()
        self.known = KnownTensors(self._scopes, check_constant, read)
        # The exception of an operation, which TorchScript's interpreter does not pass on.
        self.failure: Exception | None = None
        self._thread = threading.get_ident()
        self.equals: Callable[[torch.Tensor], bool] | None = None
        # A tensor of the host that has changed since its last use becomes another constant.
        self._version_of: dict[int, int | None] = {}

    @property
    def graph(self) -> Graph:
        """The graph that operations are appended to: the outermost, or that of an open region."""
        return self._scopes[-1].graph

    def add_source(self, source: Source, value: torch.Tensor, record: NodeRecord) -> fx.Node:
        """Makes `value` a placeholder of the current graph."""
        return self._scopes[-1].add_source(source, value, record)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Tensors that have a node in the outermost graph."""
        return self._scopes[0].tensors

    def read_first(self, value: torch.Tensor) -> torch.Tensor:
        """Makes a source's tensor a copy that is read before all operations.

        Later writes to the source then change no result, also none of backward.

        Returns:
            A tensor that stands for the source itself.
        """
        source = value.clone()
        self._scopes[-1].swap_with_copy(value, source)
        return source

    def find(self, value: torch.Tensor) -> fx.Node | None:
        """Returns the node that computes `value`; None for a tensor that was never recorded."""
        return self._scopes[-1].find(value)

    def node_of(self, value: torch.Tensor) -> fx.Node:
        """Returns the node of `value` in the current graph, and adds constants and captures to it.

        Raises:
            Error: the tensor does not belong to this trace.
        """
        return self._node_at(len(self._scopes) - 1, value, self.origin(""))

    def node_of_output(self, value: torch.Tensor) -> fx.Node | None:
        """Returns the node of an output of `forward`; None if it was never on the device."""
        return self.node_of(value.host) if isinstance(value, HostBacked) else self.find(value)

    @contextmanager
    def region(self, num_parameters: int) -> Iterator[Scope]:
        """Records into a new graph until the end of the context."""
        scope = Scope(Graph(), num_parameters)
        self._scopes.append(scope)
        try:
            yield scope
        finally:
            self._scopes.pop()

    @property
    def is_in_region(self) -> bool:
        """Whether the body of a loop or a branch is being recorded."""
        return len(self._scopes) > 1

    def add_region(self, name: str, region: Graph) -> str:
        """Stores a finished region in the outermost graph and returns its unique name."""
        regions = self._scopes[0].graph.regions
        unique = f"{name}_{len(regions)}"
        regions[unique] = region
        return unique

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs `func` on the fake tensors and appends it to the graph."""
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # PyTorch asks several times per operation.
        kwargs = _on_known_device(kwargs or {})
        if func in _QUERIES:
            return func(*args, **kwargs)
        # Kernels in Python, which backward runs within a function mode, must not reach that mode.
        with DisableTorchFunction():
            if HostBacked in types:
                check_not_written(func, args, kwargs)
                args, kwargs = pytree.tree_map_only(
                    HostBacked, self._upload_constant, (args, kwargs)
                )
            try:
                if threading.get_ident() != self._thread:
                    raise refusal.other_thread(func)
                return self._run(func, args, kwargs)
            except Exception as failure:
                self.failure = failure
                raise

    def _cast(self, value: torch.Tensor, dtype: torch.dtype) -> Any:
        return self._run(aten._to_copy.default, (value,), {"dtype": dtype})

    def _upload_constant(self, constant: HostBacked) -> Any:
        self._check_constant(constant)
        return self._upload(constant.host)

    def _check_constants(self, values: Any) -> None:
        """Raises if the host's tensor of a trained parameter is used beside tensors of the IPU."""
        for value in pytree.tree_leaves(values):
            is_of_host = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
            if is_of_host and value.device.type == "cpu":
                self._check_constant(value)

    def _upload(self, constant: torch.Tensor) -> Any:
        if type(constant) is not torch.Tensor:
            with disable_current_modes():
                constant = constant.as_subclass(torch.Tensor)
        return self._run(aten._to_copy.default, (constant,), {"device": IPU})

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        func = _PLAIN_TWINS.get(func, func)
        if is_host_only(args, kwargs):
            with disable_current_modes():
                result = func(*args, **kwargs)
            self._host_writes.note(func, args, kwargs, result)
            return result
        check_arguments(_recorded_as(func, args), args, kwargs)
        if func in _INDEXING:
            args = pytree.tree_map_only(torch.Tensor, self._index_on_ipu, args)
            if func is aten.index.Tensor:
                args = (args[0], self.known.places(args[1], self._add_constant))
        if func in refusal.READS_A_VALUE or func in _OF_DYNAMIC_SHAPE:
            if self.equals is not None and func is aten.equal.default:
                return self.equals(args[0])
            known = self.known.values(args)
            if known is not None:
                return self._computed_now(func, known, kwargs)
            if (outcome := outcome_of_check(func)) is not None:
                return outcome
            for name in self.known.changed_state(args[0]):
                raise integer_state.reads_changed(name)
        refusal.check(func, args)
        args, kwargs = staying(func, args, kwargs)
        args, kwargs = widened(func, args, kwargs, self._cast)
        args, kwargs = self._narrow(func, args, kwargs)
        try:
            result = self._result_type(func, args, kwargs)
        except (FakeTensorDeviceMismatchError, TypeError, RuntimeError) as failure:
            # Subclasses raise TypeError for a wrong device, and some PyTorch rules RuntimeError.
            if isinstance(failure, RuntimeError) and "same device" not in str(failure):
                raise
            self._check_constants((args, kwargs))
            args, kwargs = with_constants(func, args, kwargs, self._upload)
            result = self._result_type(func, args, kwargs)
        if is_on_ipu(result) or is_on_ipu(args):
            self._append(_recorded_as(func, args), args, kwargs, result)
        return result

    def _result_type(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Returns the fake results of `func`.

        Raises:
            Error: the metadata of the result are not known before the model runs.
        """
        try:
            result = self.memo.run(func, args, kwargs)
            if is_fake_on_host(result):
                # PyTorch's rule may check only the first operand, for example in convolutions.
                raise FakeTensorDeviceMismatchError(func, IPU, torch.device("cpu"))
            return result
        except DataDependentOutputException:
            raise refusal.reads_value(func) from None
        except DynamicOutputShapeException:
            raise refusal.data_dependent(func) from None
        except TypeError:
            if not _has_empty((args, kwargs)):
                raise
            # Runs the operation on zeros, because PyTorch's size rules may reject empty tensors.
            return result_types.infer(func, args, kwargs, IPU)
        except RuntimeError as failure:
            if not result_types.is_unknown(failure):
                raise
            try:
                return result_types.infer(func, args, kwargs, IPU)
            except (NotImplementedError, RuntimeError):
                raise refusal.no_type(func) from None

    def _computed_now(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Runs `func` on known values. Tensors among its results become constants."""
        with disable_current_modes():
            result = func(*args, **kwargs)
        return pytree.tree_map_only(torch.Tensor, self._add_constant, result)

    def _index_on_ipu(self, index: torch.Tensor) -> torch.Tensor:
        """Returns the constant on the IPU for an index tensor on the CPU."""
        value = host_value(index)
        return index if index.device.type == "ipu" or value is None else self._add_constant(value)

    def _add_constant(self, value: torch.Tensor) -> torch.Tensor:
        """Returns a new tensor on the IPU whose value is a constant of the graph."""
        form = {"dtype": value.dtype, "device": IPU}
        fake: torch.Tensor = self.memo.run(aten.empty.memory_format, (list(value.shape),), form)
        self._add_constant_source(value, fake, self.origin(""))
        return fake

    def _add_constant_source(
        self, value: torch.Tensor, fake: torch.Tensor, record: NodeRecord
    ) -> fx.Node:
        """Makes `fake` a constant of the outermost graph. Regions that read it capture it."""
        if value.layout is not torch.strided:
            raise refusal.sparse_constant(value)
        self._check_constant(value)
        self._host_writes.check_constant(value)
        outermost = self._scopes[0]
        name = str(len(outermost.graph.constants))
        # The constant is a copy, because the user's code may change the tensor later in the trace.
        with disable_current_modes():
            outermost.graph.constants[name] = value.detach().clone()
        return outermost.add_source(Source(SourceKind.CONSTANT, name), fake, record)

    def _append(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        warn_of_assertion(func)
        record = self.origin(".".join(str(func).split(".")[:2]))
        refusal.check_dense(func, result, record)
        depth = len(self._scopes) - 1
        node_args, node_kwargs = map_aggregate(
            (args, kwargs),
            lambda value: (
                self._node_at(depth, value, record) if isinstance(value, torch.Tensor) else value
            ),
        )
        nodes = self._scopes[-1].nodes
        node = self.graph.add_operation(func, node_args, node_kwargs, result, record)
        if isinstance(result, torch.Tensor):
            nodes[id(result)] = (result, node)
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    selected = self.graph.add_operation(
                        operator.getitem, (node, index), {}, item, record
                    )
                    nodes[id(item)] = (item, selected)

    def _node_at(self, depth: int, tensor: torch.Tensor, record: NodeRecord) -> fx.Node:
        """Returns the node of `tensor` in a scope; all scopes between capture the tensor."""
        scope = self._scopes[depth]
        node = scope.find(tensor)
        if node is not None and self._version_of.get(id(tensor)) == _version(tensor):
            return node
        if depth > 0:
            self._node_at(depth - 1, tensor, record)
            return scope.capture(tensor, record)
        value = host_value(tensor)
        if value is None:
            raise refusal.foreign_tensor(tensor)
        self._version_of[id(tensor)] = _version(tensor)
        return self._add_constant_source(value, tensor, record)


def _version(tensor: torch.Tensor) -> int | None:
    """Returns the version counter of a tensor on the host; None for other tensors."""
    is_on_host = not isinstance(tensor, FakeTensor) and not tensor.is_inference()
    return tensor._version if is_on_host else None


def _on_known_device(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments with device `ipu:0` for `ipu`, because PyTorch compares them unequal.

    Raises:
        Error: the device is neither the IPU nor a device of the host.
    """
    device = kwargs.get("device")
    if not isinstance(device, torch.device):
        return dict(kwargs)
    if device.type not in _DEVICES:
        raise refusal.other_device(f"device {str(device)!r}", user_source())
    return {**kwargs, "device": IPU} if device.type == "ipu" else dict(kwargs)


def _has_empty(values: Any) -> bool:
    """Returns whether one of the tensors has no elements."""
    leaves = pytree.tree_leaves(values)
    return any(isinstance(value, torch.Tensor) and value.numel() == 0 for value in leaves)


def _recorded_as(func: Any, args: tuple[Any, ...]) -> Any:
    """Returns the operation that is recorded for `func`.

    `native_batch_norm` changes its running statistics (arguments 3 and 4), but not in its schema.
    """
    twin = _HONEST_TWINS.get(func)
    return twin if twin is not None and args[3] is not None and args[5] else func
