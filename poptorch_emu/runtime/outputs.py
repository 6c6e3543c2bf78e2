"""What the user gets back from a call: plain tensors on which no backward can be started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Lets gradients of what is computed from outputs fail in our words, once in a process.

    Such a tensor is PyTorch's own, and has no history to go back through.
    """
    # `Tensor.backward` calls the first of them by its name.
    for name in ("backward", "grad"):
        setattr(torch.autograd, name, _explained(getattr(torch.autograd, name), name))


def _explained(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a function of `torch.autograd` that fails in our words."""

    @wraps(original)
    def explained(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError as failure:
            if "does not require grad" not in str(failure):
                raise
            raise _refusal("backward" if name == "backward" else "torch.autograd.grad") from failure

    return explained


def refuse_backward(*_: Any, **__: Any) -> NoReturn:
    """Stands in for `backward` of an output.

    Raises:
        Error: always.
    """
    raise _refusal("backward")


def _refusal(function: str) -> Error:
    return make_error(
        f"{function}() cannot be called explicitly on outputs of a PopTorch model. A model wrapped "
        "by poptorch.trainingModel runs forward, backward and the weight update in each call: "
        f"return a loss from forward instead; {Topic.EXPLICIT_BACKWARD}"
    )


# Saved outputs carry a reference to the function; `torch.load` is to accept it as it is harmless.
torch.serialization.add_safe_globals([refuse_backward])
