"""Outputs of a call: plain tensors whose `backward` raises an explanation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, NoReturn

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.troubleshooting import Topic

_REASON = (
    "cannot be called explicitly on outputs of a PopTorch model. A model wrapped by "
    "poptorch.trainingModel runs forward, backward and the weight update in each call: return a "
    f"loss from forward instead; {Topic.EXPLICIT_BACKWARD}"
)


def without_backward(outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Returns `outputs`, whose `backward()` raises an error from now on."""
    _explain_backward()
    for tensor in outputs:
        tensor.backward = refuse_backward  # type: ignore[method-assign]
    return outputs


@cache
def _explain_backward() -> None:
    """Extends PyTorch's error for gradients of tensors without history.

    The error is PyTorch's own, because results computed from outputs are ordinary tensors.
    """
    # `Tensor.backward` calls `torch.autograd.backward` by name, and so reaches the replacement.
    for name in ("backward", "grad"):
        setattr(torch.autograd, name, _explained(getattr(torch.autograd, name)))


def _explained(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of `torch.autograd` whose error also explains outputs of models."""

    @wraps(original)
    def explained(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError as failure:
            if "does not require grad" in str(failure):
                failure.args = (
                    f"{failure}. If it was computed from what a wrapped model returned: "
                    f"{original.__name__}() {_REASON}",
                )
            raise

    return explained


def refuse_backward(*_: Any, **__: Any) -> NoReturn:
    """Replaces `backward` of an output.

    Raises:
        Error: always.
    """
    raise make_error(f"backward() {_REASON}")


# Saved outputs contain a reference to this harmless function, which `torch.load` must accept.
torch.serialization.add_safe_globals([refuse_backward])
