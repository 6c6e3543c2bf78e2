"""What the user gets back from a call: plain tensors on which no backward can be started."""

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
    """Returns `outputs`, tensors that from now on refuse `backward()`."""
    _explain_backward()
    for tensor in outputs:
        tensor.backward = refuse_backward  # type: ignore[method-assign]
    return outputs


@cache
def _explain_backward() -> None:
    """Lets PyTorch say more where gradients of what has no history are asked for.

    What is computed from outputs is such a tensor of PyTorch's own, as others of the program are.
    """
    # `Tensor.backward` calls the first of them by its name.
    for name in ("backward", "grad"):
        setattr(torch.autograd, name, _explained(getattr(torch.autograd, name)))


def _explained(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of `torch.autograd` whose error also says what holds of outputs."""

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
    """Stands in for `backward` of an output.

    Raises:
        Error: always.
    """
    raise make_error(f"backward() {_REASON}")


# Saved outputs carry a reference to the function; `torch.load` is to accept it as it is harmless.
torch.serialization.add_safe_globals([refuse_backward])
