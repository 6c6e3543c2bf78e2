"""Raw operators of TensorFlow, and the table rows that compute them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.troubleshooting import Topic


@dataclass(frozen=True)
class RawCall:
    """A raw operator in a graph of TensorFlow.

    Attributes:
        op: operation of TensorFlow.
    """

    op: Any

    def attr(self, name: str) -> Any:
        """Returns an attribute; bytes become a string."""
        value = self.op.get_attr(name)
        return value.decode() if isinstance(value, bytes) else value

    def type_of_output(self, number: int = 0) -> torch.dtype:
        """Returns PyTorch's type for the type of an output."""
        return torch_type(self.op.outputs[number].dtype)

    def refuse(self, what: str, instead: str = "") -> Exception:
        """Returns the error for arguments that the device does not support."""
        return refusal(f"{self.op.type} {what}", instead)


@dataclass(frozen=True)
class Row:
    """The computation of a raw operator.

    Attributes:
        compute: function of the call and its inputs that returns one output or a list of outputs.
        host: positions of inputs that must be known at compilation, such as axes.
    """

    compute: Callable[..., Any]
    host: tuple[int, ...] = ()


def plain(function: Callable[..., Any]) -> Row:
    """Returns a row that passes the inputs to a function of PyTorch."""
    return Row(lambda call, *inputs: function(*inputs))


def integers(values: Any) -> list[int]:
    """Returns the numbers of an input on the host, for example a shape or axes."""
    return [int(each) for each in np.reshape(values, -1)]


def torch_type(dtype: Any) -> torch.dtype:
    """Returns PyTorch's type for a type of TensorFlow."""
    found = getattr(torch, dtype.base_dtype.name, None)
    if not isinstance(found, torch.dtype):
        raise refusal(f"the type {dtype.name}", "Convert it to float32, int32 or bool on the host")
    return found


OUTSIDE = "outside of IPUStrategy.run"


def refusal(what: str, instead: str = "", where: str = "for values on the IPU") -> Exception:
    """Returns the error for a feature of TensorFlow that is not supported.

    Args:
        what: the feature.
        instead: the way out; by default, that of a function that the device does not have.
        where: the place where it is not supported.
    """
    way_out = instead or (
        "Use a function of keras.ops, or compute it on the host from what an IPUOutfeedQueue or "
        "the model returns"
    )
    error: Exception = compiler_error(
        f"TensorFlow's {what} is not offered {where}. {way_out}; {Topic.TENSORFLOW_FUNCTION}"
    )
    return error
