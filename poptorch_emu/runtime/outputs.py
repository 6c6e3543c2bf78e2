"""What the user gets back from a call: plain tensors on which no backward can be started."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, wraps
from typing import Any, NoReturn

import torch

from poptorch_emu.errors import Error, make_error
from poptorch_emu.troubleshooting import Topic


def without_backward(outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Returns `outputs`, tensors that from now on refuse `backward()`."""
    _explain_backward()
    for tensor in outputs:
        tensor.backward = refuse_backward  # type: ignore[method-assign]
    return outputs


@cache
def _explain_backward() -> None:
    """Lets `backward()` of what is computed from outputs fail in our words, once in a process.

    Such a tensor is PyTorch's own, and has no history to go back through.
    """
    original = torch.Tensor.backward

    @wraps(original)
    def backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)  # type: ignore[no-untyped-call]
        except RuntimeError as failure:
            if "does not require grad" not in str(failure):
                raise
            raise _refusal() from failure

    torch.Tensor.backward = backward  # type: ignore[method-assign]


def refuse_backward(*_: Any, **__: Any) -> NoReturn:
    """Stands in for `backward` of an output.

    Raises:
        Error: always.
    """
    raise _refusal()


def _refusal() -> Error:
    return make_error(
        "backward() cannot be called explicitly on outputs of a PopTorch model. A model wrapped by "
        "poptorch.trainingModel runs forward, backward and the weight update in each call: return "
        f"a loss from forward instead; {Topic.EXPLICIT_BACKWARD}"
    )


# Saved outputs carry a reference to the function; `torch.load` is to accept it as it is harmless.
torch.serialization.add_safe_globals([refuse_backward])
