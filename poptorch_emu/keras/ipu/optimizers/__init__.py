"""Optimiser wrappers of the IPU's front end, which here change settings of the inner optimiser.

A wrapper returns the optimiser that it is given, with the requested settings. `fit` and the loops
of `IPUStrategy.run` apply them.
"""

from __future__ import annotations

from typing import Any, NoReturn

import keras

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.optimizers.wrapped_optimizers import change
from poptorch_emu.keras.settings.run_settings import (
    GradientAccumulationReductionMethod,
    checked_accumulation,
    checked_method,
    checked_placement,
)
from poptorch_emu.options.base import note_accepted

__all__ = [
    "ALSOptimizer",
    "CrossReplicaGradientAccumulationOptimizer",
    "CrossReplicaGradientAccumulationOptimizerV2",
    "CrossReplicaOptimizer",
    "GradientAccumulationOptimizer",
    "GradientAccumulationOptimizerV2",
    "MapGradientOptimizer",
    "ShardedOptimizer",
]


def CrossReplicaOptimizer(opt: Any, use_locking: bool = False, name: str = "") -> Any:  # noqa: N802
    """Returns the optimiser, set to average the gradients of replicas (exact).

    Args:
        opt: optimiser of Keras.
        use_locking: accepted.
        name: accepted.
    """
    return change(opt, is_mean_over_replicas=True)


def GradientAccumulationOptimizerV2(  # noqa: N802
    opt: Any,
    num_mini_batches: int,
    offload_weight_update_variables: bool | None = None,
    replicated_optimizer_state_sharding: bool | None = False,
    dtype: Any = None,
    reduction_method: GradientAccumulationReductionMethod
    | str = GradientAccumulationReductionMethod.SUM,
    use_locking: bool = False,
    name: str = "",
) -> Any:
    """Returns the optimiser, set to update once in several batches (exact; places are modelled).

    Args:
        opt: optimiser of Keras.
        num_mini_batches: number of batches of an update.
        offload_weight_update_variables: whether its state is in streaming memory.
        replicated_optimizer_state_sharding: whether each replica holds a part of the state.
        dtype: accepted.
        reduction_method: reduction of the gradients of these batches.
        use_locking: accepted.
        name: accepted.

    Raises:
        ValueError: a number or a name is out of range.
        TypeError: a value has a wrong type.
    """
    if dtype is not None:
        note_accepted("GradientAccumulationOptimizerV2(dtype=...)")
    return change(
        opt,
        accumulation=checked_accumulation(num_mini_batches),
        reduction=checked_method(
            GradientAccumulationReductionMethod, reduction_method, "reduction_method"
        ),
        placement=checked_placement(
            {
                "offload_weight_update_variables": offload_weight_update_variables,
                "replicated_optimizer_state_sharding": replicated_optimizer_state_sharding,
            }
        ),
    )


def CrossReplicaGradientAccumulationOptimizerV2(  # noqa: N802
    opt: Any, num_mini_batches: int, *args: Any, **kwargs: Any
) -> Any:
    """Returns the optimiser with the settings of both of the wrappers above (exact)."""
    return CrossReplicaOptimizer(
        GradientAccumulationOptimizerV2(opt, num_mini_batches, *args, **kwargs)
    )


GradientAccumulationOptimizer = GradientAccumulationOptimizerV2
CrossReplicaGradientAccumulationOptimizer = CrossReplicaGradientAccumulationOptimizerV2


def ALSOptimizer(opt: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
    """Returns the optimiser unchanged, because float32 needs no loss scaling (accepted).

    Raises:
        Error: the policy of Keras computes in float16.
    """
    if keras.mixed_precision.dtype_policy().compute_dtype == "float16":
        raise compiler_error(
            "ALSOptimizer scales losses of float16 by their gradients, which Keras's optimizers do "
            "not here. Use LossScaleOptimizer(optimizer, dynamic=False, initial_scale=n)."
        )
    note_accepted("ALSOptimizer")
    return opt


def MapGradientOptimizer(*args: Any, **kwargs: Any) -> NoReturn:  # noqa: N802
    """Raises an error, because a wrapper cannot change gradients (refused).

    Raises:
        Error: always.
    """
    raise compiler_error(
        "MapGradientOptimizer is not offered. Change the gradients in a loop of IPUStrategy.run, "
        "between tape.gradient and apply_gradients."
    )


def ShardedOptimizer(*args: Any, **kwargs: Any) -> NoReturn:  # noqa: N802
    """Raises an error, because operations cannot be placed by hand (refused).

    Raises:
        Error: always.
    """
    raise compiler_error(
        "ShardedOptimizer is not offered. Use model.set_pipeline_stage_assignment."
    )
