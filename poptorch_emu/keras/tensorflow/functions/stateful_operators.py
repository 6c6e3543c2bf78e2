"""Raw operators of TensorFlow that draw random numbers, use variables, or hold tensor lists.

A tensor list is a tuple here. For example, `tf.map_fn` and `tf.scan` write the rows of their
results into a list one by one.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch

from poptorch_emu.keras.capture import tensorflow_variables
from poptorch_emu.keras.tensorflow.functions.raw_call import RawCall, Row, refusal


def _sizes(shape: Any) -> list[int]:
    return [int(each) for each in np.reshape(shape, -1)]


def _device(call: RawCall) -> str:
    return str(keras.src.backend.torch.core.get_device())


def _uniform(call: RawCall, shape: Any) -> torch.Tensor:
    return torch.rand(_sizes(shape), dtype=call.type_of_output(), device=_device(call))


def _normal(call: RawCall, shape: Any) -> torch.Tensor:
    return torch.randn(_sizes(shape), dtype=call.type_of_output(), device=_device(call))


def _truncated_normal(call: RawCall, shape: Any) -> Any:
    return keras.random.truncated_normal(
        tuple(_sizes(shape)), dtype=str(call.type_of_output()).removeprefix("torch.")
    )


def _uniform_int(call: RawCall, shape: Any, low: Any, high: Any) -> torch.Tensor:
    limits = int(low), int(high)
    return torch.randint(*limits, _sizes(shape), dtype=call.type_of_output(), device=_device(call))


def _read(call: RawCall, handle: Any) -> torch.Tensor:
    return tensorflow_variables.value_of(handle)


def _assign(call: RawCall, handle: Any, value: torch.Tensor) -> list[torch.Tensor]:
    tensorflow_variables.assign(handle, value)
    return []


def _assign_add(call: RawCall, handle: Any, value: torch.Tensor) -> list[torch.Tensor]:
    tensorflow_variables.assign(handle, tensorflow_variables.value_of(handle) + value)
    return []


def _assign_sub(call: RawCall, handle: Any, value: torch.Tensor) -> list[torch.Tensor]:
    tensorflow_variables.assign(handle, tensorflow_variables.value_of(handle) - value)
    return []


def _variable_shape(call: RawCall, handle: Any) -> Any:
    return np.asarray(handle.shape, call.op.outputs[0].dtype.as_numpy_dtype)


def _gather_of_variable(call: RawCall, handle: Any, indices: torch.Tensor) -> torch.Tensor:
    if call.attr("batch_dims"):
        raise call.refuse("with batch_dims", "Read the variable first: tf.identity(variable)")
    values = tensorflow_variables.value_of(handle)
    found = values.index_select(0, indices.reshape(-1).to(torch.int64))
    return found.reshape([*indices.shape, *values.shape[1:]])


def _reserve(call: RawCall, shape: Any, count: Any) -> Any:
    return (None,) * int(count)


def _from_tensor(call: RawCall, x: torch.Tensor, shape: Any) -> Any:
    return tuple(torch.unbind(x))


def _set_item(call: RawCall, items: Any, index: Any, item: Any) -> Any:
    number = int(index)
    longer = (*items, *(None,) * (number + 1 - len(items)))
    return (*longer[:number], item, *longer[number + 1 :])


def _get_item(call: RawCall, items: Any, index: Any, shape: Any) -> Any:
    return items[int(index)]


def _stacked(call: RawCall, items: Any, shape: Any) -> torch.Tensor:
    if any(each is None for each in items):
        raise refusal("TensorArray with an element that was not written", "Write all elements")
    return torch.stack([torch.as_tensor(each) for each in items])


def _length(call: RawCall, items: Any) -> Any:
    return np.asarray(len(items), np.int32)


# Operators that run on the device even if all their inputs are known on the host.
ROWS = {
    "AssignAddVariableOp": Row(_assign_add),
    "AssignSubVariableOp": Row(_assign_sub),
    "AssignVariableOp": Row(_assign),
    "RandomStandardNormal": Row(_normal, host=(0,)),
    "RandomUniform": Row(_uniform, host=(0,)),
    "RandomUniformInt": Row(_uniform_int, host=(0, 1, 2)),
    "ReadVariableOp": Row(_read),
    "ResourceGather": Row(_gather_of_variable),
    "TensorListFromTensor": Row(_from_tensor, host=(1,)),
    "TensorListGetItem": Row(_get_item, host=(1, 2)),
    "TensorListLength": Row(_length),
    "TensorListReserve": Row(_reserve, host=(0, 1)),
    "TensorListSetItem": Row(_set_item, host=(1,)),
    "TensorListStack": Row(_stacked, host=(1,)),
    "TruncatedNormal": Row(_truncated_normal, host=(0,)),
    "VariableShape": Row(_variable_shape),
}
