"""The replicas that a layer or a function runs on, and exchanges among them.

While a function is run on the host to see what it is made of, and while Keras asks for shapes,
nothing is exchanged.
"""

from __future__ import annotations

from typing import Any

import keras
import torch

from poptorch_emu.companions.poptorch_experimental_addons import collectives
from poptorch_emu.keras.ipu.config import system_settings
from poptorch_emu.keras.loops.capture_state import current


def num_replicas(name: str = "", argument: str = "", given: int | None = None) -> int:
    """Returns how many replicas there are.

    Outside of a model and a function that is what the program says, or else as many as IPUs: how
    many IPUs a replica has is only known where it runs.

    Args:
        name: of the operation that is asked for.
        argument: its name for the number of replicas.
        given: what the program says, if it does.

    Raises:
        ValueError: there are others.
    """
    capture = current()
    if capture is None:
        return given or system_settings().num_ipus or 1
    if given not in (None, capture.replicas):
        raise ValueError(
            f"ipu.{name} has {argument}={given}, but there are {capture.replicas} replicas, all of "
            f"which exchange values. Give {capture.replicas}, or set IPUConfig.auto_select_ipus to "
            f"{given} times the IPUs of a replica."
        )
    return capture.replicas


def summed(x: Any, count: int) -> Any:
    """Returns the sum over replicas; its gradient is the sum of those of all."""
    x = keras.ops.convert_to_tensor(x)
    if count == 1:
        return x
    if x.dtype.is_floating_point:
        x = collectives.all_reduce_cross_replica_sum(x, count, insert_in_grad_graph=True)
    return collectives.all_reduce_cross_replica_sum(x, count)


def gathered(x: Any, count: int) -> Any:
    """Returns the values of all replicas on a new first axis."""
    x = keras.ops.convert_to_tensor(x)
    return x.unsqueeze(0) if count == 1 else collectives.all_gather_cross_replica(x, count)


def exchanged(pieces: torch.Tensor, count: int) -> torch.Tensor:
    """Returns what the replicas have sent to this one: piece s of the first axis goes to s."""
    return pieces if count == 1 else collectives.all_to_all_single_cross_replica(pieces, count)


def index() -> Any:
    """Returns the number of the replica."""
    count = num_replicas()
    return exchanged(keras.ops.arange(count, dtype="int32"), count)[0]
