"""Errors for operations that cannot be captured, with the user's line and an alternative."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.record import NodeRecord, Phase
from poptorch_emu.torch_versions import FakeTensor, pytree
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.values.value_guards import hint
from poptorch_emu.troubleshooting import Topic

aten = torch.ops.aten

# Operations that return the value of a tensor as a Python object.
READS_A_VALUE = {
    aten._local_scalar_dense.default,
    aten.item.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.allclose.default,
}


# Bitwise operations with their names in messages.
_BITWISE = {
    getattr(packet, overload): name
    for name in ("and", "not", "or", "xor")
    for packet in (getattr(aten, f"bitwise_{name}"), getattr(aten, f"bitwise_{name}_"))
    for overload in packet.overloads()
}


def check(func: Any, args: tuple[Any, ...]) -> None:
    """Raises if `func` cannot be recorded with these arguments, or at all.

    Args:
        func: operation that is about to be recorded.
        args: positional arguments of the operation, with fake tensors.
    """
    if func in READS_A_VALUE and _is_unknown(args[0]):
        raise reads_value(func)
    if func in _BITWISE:
        _check_bitwise(_BITWISE[func], args)
    if func is aten.native_batch_norm_backward.default:
        _check_batch_norm(args)


def _check_bitwise(name: str, args: tuple[Any, ...]) -> None:
    """Raises for bitwise operations on floating-point numbers."""
    given = [value.dtype for value in args if isinstance(value, torch.Tensor)]
    given = [dtype for dtype in given if dtype.is_floating_point]
    if given:
        raise compiler_error(
            f"Bitwise-{name} operator supports only bool and integer types, but at "
            f"{user_source()} it is given {given[0]}. Compare first (x > 0), cast to an integer "
            f"type, or use torch.logical_{name}."
        )


def reads_value(func: Any) -> Error:
    """Returns the error for an operation that reads a value of the graph."""
    return compiler_error(
        'aten::item is only supported in eager mode: something in the graph ("tensor.item()", '
        f"int(tensor), `if tensor:` or similar; here {func}) reads a value that only exists when "
        f"the model runs, at {user_source()}. To log or print the value, return it from forward "
        "and read it there. Keep a decision on the device with torch.where or poptorch.cond, "
        "loop with poptorch.for_loop, or run that part on the host with "
        f"poptorch.CPU. {hint()}; {Topic.PYTHON_CONTROL_FLOW}"
    )


def moves_to_cpu(tensor: torch.Tensor) -> Error:
    """Returns PopTorch's error for `tensor.to("cpu")`."""
    return compiler_error(
        f'Illegal move to CPU (via `.to("cpu")`) of an IPU tensor of shape {list(tensor.shape)} at '
        f"{user_source()}. Return the IPU tensor from forward instead: what forward returns "
        f"arrives on the CPU; {Topic.MOVED_TO_CPU}"
    )


def other_device(found: str, line: str) -> Error:
    """Returns the error for a device that is neither the IPU nor the CPU."""
    return compiler_error(
        f"Another device is used in forward at {line}: {found}. A compiled model runs on the IPU "
        'alone: take the move out, name device="ipu" or the device of an input (x.device) where a '
        f"tensor is made, or decide by poptorch.isRunningOnIpu(); {Topic.OTHER_DEVICE}"
    )


def without_values(found: str, line: str) -> Error:
    """Returns the error for a failure of PyTorch that occurs because tensors have no values yet."""
    return compiler_error(
        f"What happens at {line} cannot be captured: while forward is captured, tensors have types "
        "and shapes, but neither values nor memory. Use operations of torch, or run that part on "
        f"the host with poptorch.CPU. PyTorch says: {found}; {Topic.UNSUPPORTED_OPERATOR}"
    )


def other_thread(func: Any) -> Error:
    """Returns the error for an operation in a thread that TorchScript started."""
    return compiler_error(
        f"{func} runs in a thread of its own (torch.jit.fork), but operations are captured in "
        "order. Call the function itself in place of fork and wait; on IPUs, only stages and "
        "micro-batches run in parallel."
    )


def no_type(func: Any) -> Error:
    """Returns the error for an operation without a rule for the metadata of its result."""
    return compiler_error(
        f"Type inference failed for {func} at {user_source()}: it has no implementation for the "
        "Meta backend, and its result is not a dense tensor of fixed shape. Use dense tensors, or "
        f"run that part on the host with poptorch.CPU; {Topic.UNSUPPORTED_OPERATOR}"
    )


def check_dense(func: Any, result: Any, record: NodeRecord) -> None:
    """Raises if an operation returns a sparse tensor.

    Args:
        func: operation that is to be recorded.
        result: fakes of its results.
        record: origin of the operation.
    """
    layouts = (each.layout for each in pytree.tree_leaves(result) if hasattr(each, "layout"))
    layout = next((each for each in layouts if each is not torch.strided), None)
    if layout is None:
        return
    if record.phase is Phase.BACKWARD:
        layer = f" of layer {record.module!r}" if record.module else ""
        raise compiler_error(
            f"Unsupported aten::embedding operation: the gradient{layer} at {record.source} is "
            f"sparse ({layout}), but a compiled graph has dense tensors only. Make the layer with "
            f"sparse=False; {Topic.UNSUPPORTED_OPERATOR}"
        )
    raise sparse_result(func, f"has the layout {layout}")


def sparse_result(func: Any, found: str) -> Error:
    """Returns the error for an operation that makes a sparse tensor.

    Args:
        func: the operation.
        found: what its result is, after "but".
    """
    return compiler_error(
        f"Type inference failed for {func} at {user_source()}: its result is not a dense tensor, "
        f"but {found}. Use dense tensors (a sparse one as a buffer of row and "
        "column indices with index_add or scatter_add), or run that part on the host with "
        f"poptorch.CPU; {Topic.UNSUPPORTED_OPERATOR}"
    )


def sparse_constant(tensor: torch.Tensor) -> Error:
    """Returns the error for a sparse tensor of the host that met tensors on the IPU."""
    return compiler_error(
        f"A tensor of shape {list(tensor.shape)} with the layout {tensor.layout} is used together "
        f"with tensors on the IPU at {user_source()}, but a compiled graph has dense tensors only. "
        f"Call to_dense() on it, and register the result as a buffer; {Topic.UNSUPPORTED_OPERATOR}"
    )


def warn_of_host_output(value: torch.Tensor) -> None:
    """Warns of an output that was never on the device."""
    warnings.warn(
        f"Output expected to be on the IPU but is on {value.device}: it is returned as it was when "
        "the model was traced.",
        stacklevel=3,
    )


def _check_batch_norm(args: tuple[Any, ...]) -> None:
    """Raises for the gradient of a batch norm that uses its running statistics."""
    is_training = args[7]
    if not is_training:
        raise compiler_error(
            "A batch normalisation is in inference mode (module.eval()), but its gradient Op is "
            "being created: something trainable is before it or in it. Detach its input and freeze "
            f"its weight and bias, or call train() on it; {Topic.FROZEN_BATCH_NORM}",
            type="popart_exception",
        )


def gradient_of_body(parameter: str) -> Error:
    """Returns the error for a `.grad` that the body of a loop or branch changed."""
    return compiler_error(
        f"Code in a body of poptorch.for_loop or poptorch.cond adds to .grad of {parameter!r}, as "
        "backward() does there: what is made in a body only leaves it as its result. Call "
        "backward() outside of bodies, or let the loss of the model differentiate the body."
    )


def data_dependent(func: Any) -> Error:
    """Returns the error for an operation whose result has a shape that depends on data."""
    return compiler_error(
        f"{func} at {user_source()} makes a tensor whose shape depends on data, but a compiled "
        "graph has static shapes. Use a form of fixed size (torch.where, a mask, torch.topk), or "
        f"run that part on the host with poptorch.CPU. {hint()}; "
        f"{Topic.DATA_DEPENDENT_SHAPE}"
    )


def foreign_tensor(tensor: torch.Tensor) -> Error:
    """Returns the error for a CPU tensor beside IPU tensors, or for one of another trace."""
    if tensor.device.type == "ipu":
        return compiler_error(
            f"A tensor of shape {list(tensor.shape)} that was made inside a body of "
            "poptorch.for_loop or poptorch.cond, or by no operation of this model (copy.copy, an "
            f"attribute left by an earlier trace), was used outside of it at {user_source()}. "
            "Return it from the body instead, make copies with clone(), and keep state in buffers."
        )
    return compiler_error(
        f"Expected an IPU tensor but got tensor(device={tensor.device}, "
        f"shape={list(tensor.shape)}, dtype={tensor.dtype}) at {user_source()}. Register it as a "
        "buffer or parameter of the model and read it from its module in forward (as self.weight), "
        f'or make it a constant with cpu_tensor.to("ipu"); {Topic.HOST_TENSOR}'
    )


def _is_unknown(tensor: Any) -> bool:
    return (
        isinstance(tensor, FakeTensor) and tensor.constant is None and tensor.device.type == "ipu"
    )
