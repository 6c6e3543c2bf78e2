"""What `forward` writes into tensors of the host: a trace does it once, no call of the model does.

Where the values come from the device there is nothing to write yet, so that is refused. What the
host itself writes into a tensor that was there before, as a count of calls, is no constant of the
graph: the next call would find another value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.arguments import written_arguments
from poptorch_emu.torch_versions import FakeTensor, disable_current_modes, pytree
from poptorch_emu.trace.source_line import user_source
from poptorch_emu.troubleshooting import Topic

aten = torch.ops.aten

# What they write does not depend on what was there, so that each call would write the same.
_OVERWRITING = (aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default)

_WRITES = "writes into"
_TENSOR = "tensor_of_host"


class HostWrites:
    """Knows which tensors of the host a trace has made, and which of the others it has written."""

    def __init__(self) -> None:
        self._made: set[int] = set()  # Where their memory begins; no older tensor is there.
        self._constants: set[int] = set()
        # With the user's line; they are kept, so that no other tensor gets their memory.
        self._written: dict[int, tuple[torch.Tensor, str]] = {}

    def note(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Notes what an operation of the host alone has made and written.

        Raises:
            Error: it has written into a constant of the graph that was there before.
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
        """Checks that a tensor of the host, which becomes a constant, is the same in each call.

        Raises:
            Error: `forward` wrote into it, or into what it was computed from.
        """
        if _memory(value) in self._written:
            raise _refusal(value, self._written[_memory(value)][1], _WRITES)
        self._constants.add(_memory(value))


def is_of_temporary(error: Error, given: Any) -> bool:
    """Returns whether `error` is about a tensor of the host that is in no memory of `given`.

    A function of PyTorch makes such a tensor for itself and then writes into it.
    """
    written = getattr(error, _TENSOR, None)
    return written is not None and _memory(written) not in map(_memory, _host_tensors(given))


def check_arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Checks that an operation on the device writes into no tensor of the host.

    Raises:
        Error: it does.
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
    """Yields the tensors of the host that have memory; those of which a sparse one is made."""
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
    """Returns the error for a tensor of the host that is given values of the IPU."""
    error = _refusal(tensor, user_source(), "writes values of the IPU into")
    setattr(error, _TENSOR, tensor)
    return error


def _refusal(tensor: torch.Tensor, line: str, what: str) -> Error:
    tensor = tensor if tensor._base is None else tensor._base
    return compiler_error(
        f"Expected an IPU tensor but got tensor(device=cpu, shape={list(tensor.shape)}, "
        f"dtype={tensor.dtype}): forward {what} this tensor of the host at {line}, which only "
        "happens while the model is traced. Register it as a buffer of the model "
        "(self.register_buffer) and write into that, or use a new tensor in forward; what is only "
        f'read can be made a constant with cpu_tensor.to("ipu"); {Topic.HOST_TENSOR}'
    )
