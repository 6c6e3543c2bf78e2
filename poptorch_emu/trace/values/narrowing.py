"""Conversion of data types that the device does not have, during a trace.

Source: PopTorch's numeric types. float64 becomes float32. int64 stays int64 here, but a constant
must fit int32, which it would be on a real device. bfloat16 is not supported. Real devices have no
complex numbers either, but they are computed here, and complex128 becomes complex64. A parameter
cannot be complex, because the formulas of the optimisers are for real numbers. PopTorch does not
know float8, which is newer.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.graph import Graph, Source, source_of
from poptorch_emu.log import compiler_logger, warn_repeatable
from poptorch_emu.torch_versions import FakeTensor, disable_current_modes
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.troubleshooting import Topic

_INT32 = torch.iinfo(torch.int32)
_INT64 = torch.iinfo(torch.int64)

# PyTorch's C++ names of unsupported types, and of the types to use instead.
UNSUPPORTED = {
    torch.bfloat16: ("BFloat16", "Half"),
    torch.complex32: ("ComplexHalf", "Half"),
    torch.float8_e4m3fn: ("Float8_e4m3fn", "Half"),
    torch.float8_e4m3fnuz: ("Float8_e4m3fnuz", "Half"),
    torch.float8_e5m2: ("Float8_e5m2", "Half"),
    torch.float8_e5m2fnuz: ("Float8_e5m2fnuz", "Half"),
    torch.float8_e8m0fnu: ("Float8_e8m0fnu", "Half"),
    torch.qint8: ("QInt8", "Char"),
    torch.qint32: ("QInt32", "Int"),
    torch.quint8: ("QUInt8", "Byte"),
    torch.uint16: ("UInt16", "Int"),
    torch.uint32: ("UInt32", "Int"),
    torch.uint64: ("UInt64", "Int"),
}
_ON_IPU = {
    **{dtype: dtype for dtype in (torch.float32, torch.float16, torch.bool, torch.uint8)},
    **{dtype: dtype for dtype in (torch.int8, torch.int16, torch.int32, torch.int64)},
    torch.float64: torch.float32,
    torch.complex64: torch.complex64,
    torch.complex128: torch.complex64,
}
_WIDE = {torch.float64: torch.float32, torch.complex128: torch.complex64}
_WIDE_NAMES = {
    torch.float64: ("Double", "Float"),
    torch.complex128: ("ComplexDouble", "ComplexFloat"),
}
_PARTS = (
    "Keep its real and imaginary parts as one parameter, nn.Parameter(torch.view_as_real(value)), "
    "and compute in forward with torch.view_as_complex(parameter), which trains the same numbers"
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Narrowing:
    """Narrows the data types of one trace, with one message for each line of the user's code."""

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._num_tensors = 0

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Returns the arguments of `func` with the data types of the device.

        Raises:
            Error: the operation makes a tensor of an unsupported type.
        """
        kwargs = dict(kwargs)
        dtype = kwargs.get("dtype")
        for asked in (dtype, *args):
            refuse(asked)
        value = _uploaded(args[0], kwargs) if func is torch.ops.aten._to_copy.default else None
        if value is not None:
            with disable_current_modes():
                args = (narrowed_constant(value), *args[1:])
            dtype = dtype or value.dtype
            refuse(dtype)
        if dtype in _WIDE:
            kwargs["dtype"] = _WIDE[dtype]
            self._report(dtype)
        return args, kwargs

    def _report(self, dtype: torch.dtype) -> None:
        self._num_tensors += 1
        source = user_source()
        if source not in self._reported:
            self._reported.add(source)
            wide, narrow = _WIDE_NAMES[dtype]
            compiler_logger.warning(
                "Type coerced from %s to %s for tensor id %d, made at %s: the device has no %s. "
                "Ask for %s there; %s",
                wide,
                narrow,
                self._num_tensors,
                source,
                str(dtype).removeprefix("torch."),
                _WIDE[dtype],
                Topic.FLOAT64,
            )


def warn_of_constants(graph: Graph, downgraded: Container[Source]) -> None:
    """Warns of these parameters and buffers if they are read, because they are now constant."""
    read = [node for node in graph.sources if node.users and source_of(node) in downgraded]
    for node in read:
        warn_repeatable(
            "downgraded",
            "Parameter %s: %s %s was downgraded to constant because PopART doesn't support non "
            "floating point parameters: it keeps the value it has now; %s",
            source_of(node).name,
            node.meta["val"].dtype,
            list(node.meta["val"].shape),
            Topic.INTEGER_STATE,
        )


def narrowed_constant(value: torch.Tensor) -> torch.Tensor:
    """Returns a constant that the device can represent; warns if its values change."""
    if value.is_meta:
        return value  # Without values, only plans are made.
    if value.dtype is torch.int64 and value.numel():
        return _narrowed_integers(value)
    if value.dtype is torch.float64:
        single = value.float()
        if bool((single.isinf() & value.isfinite()).any()):
            compiler_logger.warning(
                "torch.float64 constant cannot be represented as a torch.float32: values beyond "
                "%g become infinite; %s",
                torch.finfo(torch.float32).max,
                Topic.FLOAT64,
            )
    return value


def _narrowed_integers(value: torch.Tensor) -> torch.Tensor:
    is_largest = value == _INT64.max
    if bool(is_largest.any()):
        compiler_logger.info(
            "The largest torch.int64 in a constant becomes the largest torch.int32."
        )
        value = value.masked_fill(is_largest, _INT32.max)
    if bool(((value < _INT32.min) | (value > _INT32.max)).any()):
        compiler_logger.warning(
            "torch.int64 constant cannot be represented as a torch.int32: the upper bits of values "
            "outside [%d, %d] are lost; %s",
            _INT32.min,
            _INT32.max,
            Topic.INT64_OVERFLOW,
        )
        value = value.to(torch.int32).to(torch.int64)
    return value


def type_on_ipu(dtype: torch.dtype, name: str, *, is_parameter: bool = False) -> torch.dtype:
    """Returns the data type of an input, parameter or buffer on the device.

    Args:
        dtype: data type on the host.
        name: name of the tensor for messages.
        is_parameter: whether the tensor may be trained.

    Raises:
        Error: the device has no such type.
    """
    is_complex_parameter = is_parameter and dtype.is_complex
    if dtype not in _ON_IPU or is_complex_parameter:
        has_fractions = dtype.is_floating_point or dtype.is_complex
        instead = "torch.float32 or torch.float16" if has_fractions else "torch.int32"
        cast = f"Please cast to {instead} before the tensor goes to the device"
        raise compiler_error(
            f"Unsupported tensor input type from pytorch: {dtype}, that of {name}. "
            f"{_PARTS if is_complex_parameter else cast}; {Topic.UNSUPPORTED_TYPE}"
        )
    return _ON_IPU[dtype]


def refuse(dtype: Any) -> None:
    """Raises an `Error` if the device does not have `dtype`."""
    if isinstance(dtype, torch.dtype) and dtype in UNSUPPORTED:
        name, instead = UNSUPPORTED[dtype]
        raise compiler_error(
            f"Unsupported scalar type `{name}' at {user_source()}. Please cast to `{instead}' "
            f"before the tensor goes to the device; {Topic.UNSUPPORTED_TYPE}"
        )


def _uploaded(tensor: torch.Tensor, kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Returns the known values that a copy moves from the host to the device, or None."""
    device = kwargs.get("device")
    goes_to_ipu = device is not None and torch.device(device).type == "ipu"
    if not goes_to_ipu or tensor.device.type != "cpu":
        return None
    return tensor.constant if isinstance(tensor, FakeTensor) else tensor
