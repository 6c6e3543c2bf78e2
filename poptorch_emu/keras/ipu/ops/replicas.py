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


def num_replicas() -> int:
    """Returns how many replicas there are; outside of a model and a function, as many as IPUs."""
    capture = current()
    return (system_settings().num_ipus or 1) if capture is None else capture.replicas


def check_replicas(name: str, argument: str, given: int | None) -> None:
    """Checks a number of replicas that a program gives.

    Raises:
        ValueError: there are others.
    """
    count = num_replicas()
    if given is not None and given != count:
        raise ValueError(
            f"ipu.{name} has {argument}={given}, but there are {count} replicas, all of which "
            f"exchange values. Give {count}, or set IPUConfig.auto_select_ipus."
        )


def summed(x: Any) -> Any:
    """Returns the sum over replicas; its gradient is the sum of those of all."""
    x, count = keras.ops.convert_to_tensor(x), num_replicas()
    if count == 1:
        return x
    if x.dtype.is_floating_point:
        x = collectives.all_reduce_cross_replica_sum(x, count, insert_in_grad_graph=True)
    return collectives.all_reduce_cross_replica_sum(x, count)


def gathered(x: Any) -> Any:
    """Returns the values of all replicas on a new first axis."""
    x, count = keras.ops.convert_to_tensor(x), num_replicas()
    return x.unsqueeze(0) if count == 1 else collectives.all_gather_cross_replica(x, count)


def exchanged(pieces: torch.Tensor) -> torch.Tensor:
    """Returns what the replicas have sent to this one: piece s of the first axis goes to s."""
    count = num_replicas()
    return pieces if count == 1 else collectives.all_to_all_single_cross_replica(pieces, count)


def index() -> Any:
    """Returns the number of the replica."""
    numbers = keras.ops.arange(num_replicas(), dtype="int32")
    return exchanged(numbers)[0]
