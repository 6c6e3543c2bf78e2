"""`PopDistStrategy`: models that several processes train together."""

from __future__ import annotations

from typing import Any, NoReturn

from poptorch_emu.companions import popdist
from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.ipu.ipu_strategy import IPUStrategy

__all__ = ["PopDistStrategy"]


class PopDistStrategy(IPUStrategy):
    """Makes models of Keras train on the virtual IPUs of all processes (exact).

    Each process has its own batches, and all processes need the same number. Gradients are added
    over the replicas of all processes, so that all have the same weights. With one process it is
    the same as `IPUStrategy`.
    """

    _is_of_processes = True

    def __init__(self, *args: Any, add_ipu_cross_replica_reductions: bool = True, **kwargs: Any):
        """Connects to the other processes.

        Args:
            args: positional arguments of `IPUStrategy`.
            add_ipu_cross_replica_reductions: accepted: gradients are added in any case.
            kwargs: keyword arguments of `IPUStrategy`.

        Raises:
            Error: the other processes are not found.
        """
        popdist.init()
        super().__init__(*args, **kwargs)
        if popdist.getNumInstances() > 1:
            vars(self)["run"] = _no_run

    @property
    def num_replicas_in_sync(self) -> int:  # type: ignore[override]
        """Number of processes."""
        return popdist.getNumInstances()


def _no_run(*args: Any, **kwargs: Any) -> NoReturn:
    raise compiler_error(
        "PopDistStrategy.run is offered for one process alone. Several processes train by "
        "model.fit."
    )
