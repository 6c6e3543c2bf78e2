"""What the user gets back from a call: plain tensors on which no backward can be started."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.structure import flatten_tensors
from poptorch_emu.troubleshooting import Topic


def without_backward(outputs: Any, of_the_user: Iterable[torch.Tensor] = ()) -> Any:
    """Returns `outputs`, whose tensors from now on refuse `backward()`.

    Args:
        outputs: tensors in containers.
        of_the_user: tensors among them that never were on the device; they stay as they are.
    """
    kept = {id(tensor) for tensor in of_the_user}
    for tensor in flatten_tensors(outputs):
        if id(tensor) not in kept:
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
