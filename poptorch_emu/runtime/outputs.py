"""What the user gets back from a call: plain tensors on which no backward can be started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.troubleshooting import Topic


def without_backward(outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Returns `outputs`, tensors that from now on refuse `backward()`."""
    for tensor in outputs:
        tensor.backward = refuse_backward  # type: ignore[method-assign]
    return outputs


def refuse_backward(*_: Any, **__: Any) -> NoReturn:
    """Stands in for `backward` of an output.

    Raises:
        Error: always.
    """
    raise make_error(
        "backward() cannot be called explicitly on outputs of a PopTorch model. A model wrapped by "
        "poptorch.trainingModel runs forward, backward and the weight update in each call: return "
        f"a loss from forward instead; {Topic.EXPLICIT_BACKWARD}"
    )


# Saved outputs carry a reference to the function; `torch.load` is to accept it as it is harmless.
torch.serialization.add_safe_globals([refuse_backward])
