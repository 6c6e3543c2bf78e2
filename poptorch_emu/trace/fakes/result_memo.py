"""Computes fake results of operations, quickly for dense tensors on the IPU.

The memo stores the metadata of each result, so that equal layers are computed once. PyTorch has a
similar cache, but its keys hold much more than is needed here. The first time, PyTorch computes the
metadata, directly by its meta kernel if it has no further rule. Complicated arguments are always
left to PyTorch. Metadata from another process can be reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from poptorch_emu.torch_versions import (
    DisableTorchDispatch,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    PreserveDispatchKeyGuard,
    TorchDispatchModeKey,
    get_dispatch_mode,
    has_kernel_for_dispatch_key,
    make_subclass,
    op_implementations_checks,
    set_meta_in_tls_dispatch_include,
)
from poptorch_emu.trace.fakes import (
    kernel_strides,
    metadata_rules,
    mismatched_shapes,
    operand_types,
)
from poptorch_emu.trace.fakes.fake_tensors import FakeMaker
from poptorch_emu.trace.fakes.result_metadata import (
    ResultMetadata,
    TensorMetadata,
    Written,
    settings,
)

aten = torch.ops.aten

_get_dispatch_mode = get_dispatch_mode
_FAKE = TorchDispatchModeKey.FAKE
_CPU = torch.device("cpu")

# Views that PyTorch computes by its meta kernel, without rules in Python.
_VIEWS = frozenset(
    {
        aten._reshape_alias.default,
        aten._unsafe_view.default,
        aten.alias.default,
        aten.as_strided.default,
        aten.detach.default,
        aten.diagonal.default,
        aten.expand.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.squeeze.dim,
        aten.t.default,
        aten.transpose.int,
        aten.unbind.int,
        aten.unsqueeze.default,
        aten.view.default,
    }
)

# Operations whose rule in PyTorch has the same result as their meta kernel.
_LIKE_THEIR_KERNEL = frozenset({aten.embedding.default, aten.native_layer_norm.default})

_LITERALS = frozenset(
    {
        bool,
        int,
        float,
        str,
        type(None),
        torch.device,
        torch.dtype,
        torch.layout,
        torch.memory_format,
    }
)
_UNPREDICTABLE = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)


class _NotSimpleError(Exception):
    """An argument or a result is not a dense tensor on the IPU, nor a literal."""


class ResultMemo:
    """The metadata of the results in one trace.

    Attributes:
        has_learned: whether new metadata have been computed.
    """

    def __init__(
        self, device: torch.device, before: Mapping[str, ResultMetadata] | None = None
    ) -> None:
        """Makes a memo for results on `device`, with the metadata `before` from an earlier memo."""
        self._device = device
        self._fakes = FakeMaker(device)
        self._on_cpu = FakeMaker(_CPU)
        self._before = before or {}
        self.has_learned = False
        # None marks results that must be computed each time.
        self._known: dict[Any, ResultMetadata | None] = {}

    @property
    def metadata(self) -> dict[str, ResultMetadata]:
        """Metadata that were computed or used here, by texts that are valid in every process."""
        return {
            _text(key): metadata for key, metadata in self._known.items() if metadata is not None
        }

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Returns the fake results of `func`, as new fake tensors."""
        if func in _VIEWS and self._is_simple(args[0]):
            return self._run_on_meta(args[0].fake_mode, func, args, kwargs, is_in_cpp=True)
        key, mode = self._key(func, args, kwargs)
        if mode is None:
            return func(*args, **kwargs)
        if key not in self._known:
            before = self._before.get(_text(key)) if self._before else None
            if before is None or not _fits(func, before):
                try:
                    result = self._run_first(mode, func, args, kwargs)
                except RuntimeError as failure:
                    raise mismatched_shapes.in_words_of_kernel(
                        func, args, kwargs, failure
                    ) from failure
                operand_types.check(func, args, kwargs)
                self._known[key] = metadata = self._metadata(key, args, kwargs, result)
                self.has_learned |= metadata is not None
                return result
            self._known[key] = before
        known = self._known[key]
        if known is None:
            return func(*args, **kwargs)
        if isinstance(known, Written):
            return args[0]
        if isinstance(known, TensorMetadata):
            return self._make(mode, known)
        return tuple([each and self._make(mode, each) for each in known])

    def resize(self, fake: FakeTensor, size: int) -> None:
        """Resizes a fake tensor to the shape [`size`]."""
        self._run_on_meta(fake.fake_mode, aten.resize_.default, (fake, [size]), {})

    def _make(self, mode: FakeTensorMode, metadata: TensorMetadata) -> FakeTensor:
        """Returns a new fake tensor with this metadata."""
        return self._fakes.empty(mode, metadata.shape, metadata.dtype, metadata.stride)

    def _run_first(
        self, mode: FakeTensorMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        result = self._run_by_rule(mode, func, args, kwargs)
        strides = kernel_strides.corrected(func, args, result)
        return result if strides is None else self._fakes.laid(mode, result, strides)

    def _run_by_rule(
        self, mode: FakeTensorMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        rule = metadata_rules.find(func, args)
        if rule is not None and kwargs.get("device") in (None, self._device):
            try:
                return self._run_on_meta(mode, rule, args, kwargs, is_in_cpp=True)
            except metadata_rules.NOT_TAKEN:
                pass  # PyTorch's own rule decides, or raises.
        return self._run_as_on_cpu(mode, func, args, kwargs)

    def _run_as_on_cpu(
        self, mode: FakeTensorMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Returns the results of PyTorch's rules for the same arguments on the CPU.

        Some rules in Python read the device, which affects strides; the engine runs on the CPU.
        """
        given: dict[int, FakeTensor] = {}

        def on_cpu(value: Any) -> Any:
            if isinstance(value, FakeTensor):
                stand_in = self._on_cpu.wrap(mode, _plain(value))
                given[id(stand_in)] = value
                return stand_in
            if isinstance(value, (tuple, list)):
                return type(value)([on_cpu(each) for each in value])
            return _CPU if isinstance(value, torch.device) else value

        def back(value: Any) -> Any:
            if isinstance(value, (tuple, list)):
                return type(value)([back(each) for each in value])
            if not isinstance(value, FakeTensor):
                return value
            known = given.get(id(value))
            return self._fakes.wrap(mode, _plain(value)) if known is None else known

        args, kwargs = on_cpu(args), {name: on_cpu(value) for name, value in kwargs.items()}
        if _is_plain(func) and "device" not in kwargs:
            return back(self._run_on_meta(mode, func, args, kwargs))
        return back(func(*args, **kwargs))

    def _run_on_meta(
        self,
        mode: FakeTensorMode,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        is_in_cpp: bool = False,
    ) -> Any:
        """Returns the fake results of a kernel for meta tensors.

        The guards are those of PyTorch's `in_kernel_invocation_manager`, which is a generator and
        as slow as many kernels. Kernels in Python get fake tensors, because they may read the
        device. Kernels in C++ get plain meta tensors, because PyTorch loads its distributed tensors
        when it sees a subclass of `Tensor`.
        """
        with DisableTorchDispatch(), PreserveDispatchKeyGuard():
            mode.in_kernel_invocation = True
            set_meta_in_tls_dispatch_include(True)
            try:
                if is_in_cpp:
                    named = {name: _plain(value) for name, value in kwargs.items()}
                    result = func(*_plain(args), **named)
                else:
                    result = func(*args, **kwargs)
            finally:
                mode.in_kernel_invocation = False
        if func._schema.is_mutable:
            return args[0]
        if isinstance(result, (tuple, list)):
            return type(result)([self._as_fake(mode, each) for each in result])
        return self._as_fake(mode, result)

    def _as_fake(self, mode: FakeTensorMode, value: Any) -> Any:
        is_new = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        return self._fakes.wrap(mode, value) if is_new else value

    def _key(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, FakeTensorMode | None]:
        """Returns a key of everything that affects the results, and the arguments' mode or None."""
        if not (_is_predictable(func) or _takes_rows_by_number(func, args)):
            return None, None
        first = next(iter(_tensors(args)), None)
        mode = first.fake_mode if first is not None else self._mode_of_factory(kwargs)
        if mode is None or (func._schema.is_mutable and _shares_memory(args, kwargs)):
            return None, None
        try:
            parts = tuple([self._part(value) for value in args])
            named = tuple([(name, self._part(value)) for name, value in kwargs.items()])
        except _NotSimpleError:
            return None, None
        return (func, parts, named, settings()), mode

    def _mode_of_factory(self, kwargs: Mapping[str, Any]) -> FakeTensorMode | None:
        """Returns the mode of a tensor that is created on the device without operands."""
        if kwargs.get("device") != self._device:
            return None
        mode: FakeTensorMode | None = _get_dispatch_mode(_FAKE)
        return mode

    def _part(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            if not self._is_simple(value):
                raise _NotSimpleError
            return value.dtype, value.shape, value.stride(), value.storage_offset()
        if kind is list or kind is tuple:
            return tuple([self._part(item) for item in value])
        if kind not in _LITERALS:
            raise _NotSimpleError
        return kind, value

    def _is_simple(self, value: Any) -> bool:
        return (
            type(value) is FakeTensor
            and value.fake_device == self._device
            and value.constant is None
            and value.layout is torch.strided
            and not value.dtype.is_complex
            and not value.is_neg()
        )

    def _metadata(
        self, key: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> ResultMetadata | None:
        """Returns the metadata of a result; None if the key does not determine the result."""
        func, parts, *_ = key
        if func._schema.is_mutable:
            is_unchanged = result is args[0] and self._part(result) == parts[0]
            return Written() if is_unchanged else None
        storages = {_storage(value) for value in _tensors((args, kwargs))}
        metadata: list[TensorMetadata | None] = []
        for each in result if isinstance(result, tuple) else (result,):
            if each is None and isinstance(result, tuple):
                metadata.append(None)
                continue
            if not self._is_simple(each) or each.requires_grad or each.storage_offset():
                return None
            if _storage(each) in storages:
                return None
            storages.add(_storage(each))
            metadata.append(TensorMetadata(each.dtype, each.shape, each.stride()))
        return tuple(metadata) if isinstance(result, tuple) else metadata[0]


def _text(key: Any) -> str:
    """Returns a text for a key that is the same in every process, and differs between keys."""
    func, *parts = key
    return f"{func} {parts!r}"


def _fits(func: Any, metadata: ResultMetadata) -> bool:
    """Returns whether an operation can have results with this metadata, which come from a file."""
    schema = func._schema
    if isinstance(metadata, Written) or schema.is_mutable:
        return isinstance(metadata, Written) and schema.is_mutable
    each = metadata if isinstance(metadata, tuple) else (metadata,)
    can_lack_some = any(argument.name == "output_mask" for argument in schema.arguments)
    return (
        len(each) == len(schema.returns)
        and isinstance(metadata, tuple) == (len(each) > 1)
        and (can_lack_some or None not in each)
    )


@cache
def _is_predictable(func: Any) -> bool:
    """Returns whether the metadata of the arguments alone determine those of the results."""
    return (
        isinstance(func, OpOverload)
        and (func.namespace == "aten" or metadata_rules.is_ours(func))
        and not func.is_view
        and not any(tag in func.tags for tag in _UNPREDICTABLE)
        and (not func._schema.is_mutable or _writes_first_only(func))
    )


def _takes_rows_by_number(func: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether an operation indexes by numbers only, because masks depend on values."""
    return func is aten.index.Tensor and not any(
        index.dtype in (torch.bool, torch.uint8) for index in args[1] if index is not None
    )


def _writes_first_only(func: Any) -> bool:
    """Returns whether an operation only writes to its first argument, and returns it."""
    is_written = [
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in func._schema.arguments
    ]
    return torch.Tag.inplace in func.tags and is_written[0] and not any(is_written[1:])


@cache
def _is_plain(func: Any) -> bool:
    """Returns whether PyTorch computes fake results by the meta kernel alone."""
    has_kernel = has_kernel_for_dispatch_key(func.name(), "Meta")
    has_rule = any(is_special(func) for is_special, _ in op_implementations_checks)
    return has_kernel and (not has_rule or func in _LIKE_THEIR_KERNEL)


def _shares_memory(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether two tensors among the arguments share memory."""
    places = [_storage(value) for value in _tensors((args, kwargs))]
    return len(set(places)) < len(places)


def _plain(value: Any) -> Any:
    """Returns arguments with plain meta tensors in place of fake tensors."""
    if isinstance(value, FakeTensor):
        return make_subclass(torch.Tensor, value)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def _storage(value: torch.Tensor) -> int:
    address: int = value.untyped_storage()._cdata
    return address


def _tensors(values: Any) -> list[FakeTensor]:
    """Returns the fake tensors in nested lists, tuples and mappings."""
    if isinstance(values, FakeTensor):
        return [values]
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, (tuple, list)):
        return [tensor for item in values for tensor in _tensors(item)]
    return []
