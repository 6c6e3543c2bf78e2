"""Raw operators of TensorFlow that draw random numbers, use variables, or hold tensor lists.

A tensor list is a tuple here. For example, `tf.map_fn` and `tf.scan` write the rows of their
results into a list one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import torch
from keras.src.backend.torch.core import get_device

from poptorch_emu.keras.capture.tensorflow_variables import assign, value_of
from poptorch_emu.keras.tensorflow.functions.raw_call import RawCall, Row, integers, plain, refusal
from poptorch_emu.keras.tensorflow.functions.shape_operators import gather, of_shape


def _drawn(draw: Callable[..., torch.Tensor]) -> Row:
    """Returns the row of a function of PyTorch that draws a tensor of some shape."""

    def call_with(call: RawCall, shape: Any, *limits: Any) -> torch.Tensor:
        given = [*map(int, limits), integers(shape)]
        return draw(*given, dtype=call.type_of_output(), device=str(get_device()))

    return Row(call_with, host=(0, 1, 2))


def _truncated_normal(call: RawCall, shape: Any) -> Any:
    return keras.random.truncated_normal(
        tuple(integers(shape)), dtype=str(call.type_of_output()).removeprefix("torch.")
    )


def _assignment(change: Callable[..., torch.Tensor] | None = None) -> Row:
    """Returns the row of an assignment to a variable.

    Args:
        change: function of the former value and the operand; `None` to assign the operand.
    """

    def call_with(call: RawCall, handle: Any, value: torch.Tensor) -> list[torch.Tensor]:
        assign(handle, value if change is None else change(value_of(handle), value))
        return []

    return Row(call_with)


def _set_item(call: RawCall, items: Any, index: Any, item: Any) -> Any:
    number = int(index)
    longer = (*items, *(None,) * (number + 1 - len(items)))
    return (*longer[:number], item, *longer[number + 1 :])


def _stacked(call: RawCall, items: Any, shape: Any) -> torch.Tensor:
    if any(each is None for each in items):
        raise refusal("TensorArray with an element that was not written", "Write all elements")
    return torch.stack([torch.as_tensor(each) for each in items])


# Operators that run on the device even if all their inputs are known on the host.
ROWS = {
    "AssignAddVariableOp": _assignment(torch.add),
    "AssignSubVariableOp": _assignment(torch.sub),
    "AssignVariableOp": _assignment(),
    "RandomStandardNormal": _drawn(torch.randn),
    "RandomUniform": _drawn(torch.rand),
    "RandomUniformInt": _drawn(torch.randint),
    "ReadVariableOp": plain(value_of),
    "ResourceGather": Row(
        lambda call, handle, i: gather(call, value_of(handle), i, call.attr("batch_dims"))
    ),
    "TensorListFromTensor": Row(lambda call, x, shape: tuple(torch.unbind(x)), host=(1,)),
    "TensorListGetItem": Row(lambda call, items, index, shape: items[int(index)], host=(1, 2)),
    "TensorListLength": plain(lambda items: np.asarray(len(items), np.int32)),
    "TensorListReserve": Row(lambda call, shape, count: (None,) * int(count), host=(0, 1)),
    "TensorListSetItem": Row(_set_item, host=(1,)),
    "TensorListStack": Row(_stacked, host=(1,)),
    "TruncatedNormal": Row(_truncated_normal, host=(0,)),
    "VariableShape": of_shape(tuple),
}
