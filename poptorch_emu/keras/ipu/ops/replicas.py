"""The replicas that run a layer or a function, and exchanges between them.

Nothing is exchanged during a trial run of a function on the host, or while Keras infers shapes.
"""

from __future__ import annotations

from typing import Any

import keras
import torch

from poptorch_emu.companions.poptorch_experimental_addons import collectives
from poptorch_emu.keras.capture.capture_state import current
from poptorch_emu.keras.ipu.config import system_settings


def num_replicas(name: str = "", argument: str = "", given: int | None = None) -> int:
    """Returns the number of replicas.

    Outside of a model and a function it is the given number, or else the number of IPUs, because
    the IPUs of one replica are only known where it runs.

    Args:
        name: name of the requested operation, for the message.
        argument: name of the operation's argument for the number of replicas.
        given: number in the program; `None` if there is none.

    Raises:
        ValueError: the given number is not the number of replicas.
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
    """Returns the sum over replicas; its gradient is the sum of all replicas' gradients."""
    x = keras.ops.convert_to_tensor(x)
    if count == 1:
        return x
    if x.dtype.is_floating_point:
        x = collectives.all_reduce_cross_replica_sum(x, count, insert_in_grad_graph=True)
    return collectives.all_reduce_cross_replica_sum(x, count)


def exchanged(pieces: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the pieces sent to this replica; piece s of the first axis goes to replica s."""
    return pieces if count == 1 else collectives.all_to_all_single_cross_replica(pieces, count)
