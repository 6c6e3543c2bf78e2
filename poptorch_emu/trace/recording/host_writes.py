"""Writes of `forward` into tensors of the host, which only happen once, in the trace.

Values of the device do not exist in a trace, so a write of them raises. If the host itself writes
into an older tensor, for example a count of calls, that tensor must not become a constant, because
the next call would find another value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.arguments import written_arguments
from poptorch_emu.torch_versions import FakeTensor, disable_current_modes, pytree
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.troubleshooting import Topic

aten = torch.ops.aten

# Operators that write the same values in each call, because they do not read the old ones.
_OVERWRITING = (aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default)

_WRITES = "writes into"
_TENSOR = "tensor_of_host"


class HostWrites:
    """Tensors of the host that a trace has made, and other tensors that it has written."""

    def __init__(self) -> None:
        self._made: set[int] = set()  # Addresses of new tensors.
        self._constants: set[int] = set()
        # Written tensors with the user's line. Holding them keeps their memory from being reused.
        self._written: dict[int, tuple[torch.Tensor, str]] = {}

    def note(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Records the tensors that an operation on the host has made and written.

        Raises:
            Error: the operation has written into an older tensor that is a constant of the graph.
        """
        given = {_memory(each) for each in _host_tensors((args, kwargs))}
        line = next((self._written[each][1] for each in given if each in self._written), "")
        for each in _written_by(func, args, kwargs):
            if _memory(each) in self._constants - self._made:
                raise _refusal(each, user_source(), _WRITES)
            if line or not (func in _OVERWRITING or _memory(each) in self._made):
                self._written.setdefault(_memory(each), (each, line or user_source()))
        for each in _host_tensors(result):
            if func is aten.lift_fresh.default or _memory(each) not in given:
                self._made.add(_memory(each))
                if line:
                    self._written[_memory(each)] = (each, line)

    def check_constant(self, value: torch.Tensor) -> None:
        """Checks that a tensor of the host, which becomes a constant, is equal in each call.

        Raises:
            Error: `forward` wrote into the tensor, or into one it was computed from.
        """
        if _memory(value) in self._written:
            raise _refusal(value, self._written[_memory(value)][1], _WRITES)
        self._constants.add(_memory(value))


def is_of_temporary(error: Error, given: Any) -> bool:
    """Returns whether `error` is about a tensor of the host that shares no memory with `given`.

    Such a tensor is a temporary of a function of PyTorch.
    """
    written = getattr(error, _TENSOR, None)
    return written is not None and _memory(written) not in map(_memory, _host_tensors(given))


def check_arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Checks that an operation on the device does not write into a tensor of the host.

    Raises:
        Error: the operation writes into such a tensor.
    """
    for value in _written_by(func, args, kwargs):
        raise refusal(value)


def _written_by(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    """Yields the tensors of the host that an operation writes."""
    for value in written_arguments(func, args, kwargs):
        yield from _host_tensors(value)


def _host_tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yields the non-empty tensors of the host; for a sparse one, its dense parts."""
    for value in pytree.tree_leaves(values):
        is_of_host = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        if is_of_host and value.device.type == "cpu" and value.numel():
            yield from filter(torch.Tensor.numel, _dense_parts(value))


def _dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is not torch.sparse_coo:
        return ()
    with disable_current_modes():
        return tensor._indices(), tensor._values()


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def refusal(tensor: torch.Tensor) -> Error:
    """Returns the error for a tensor of the host that would receive values of the IPU."""
    error = _refusal(tensor, user_source(), "writes values of the IPU into")
    setattr(error, _TENSOR, tensor)
    return error


def _refusal(tensor: torch.Tensor, line: str, verb: str) -> Error:
    tensor = tensor if tensor._base is None else tensor._base
    return compiler_error(
        f"Expected an IPU tensor but got tensor(device=cpu, shape={list(tensor.shape)}, "
        f"dtype={tensor.dtype}): forward {verb} this tensor of the host at {line}, which only "
        "happens while the model is traced. Register it as a buffer of the model "
        "(self.register_buffer) and write into that, or use a new tensor in forward; a tensor "
        f'that is only read can be made a constant with cpu_tensor.to("ipu"); {Topic.HOST_TENSOR}'
    )
