"""Operations of the IPU, for layers and functions that run on it."""

from poptorch_emu.keras.ipu.ops import (
    all_to_all_op,
    control_flow_ops,
    cross_replica_ops,
    embedding_ops,
    functional_ops,
    math_ops,
    nn_ops,
    pipelining_ops,
    rand_ops,
    replication_ops,
)

__all__ = [
    "all_to_all_op",
    "control_flow_ops",
    "cross_replica_ops",
    "embedding_ops",
    "functional_ops",
    "math_ops",
    "nn_ops",
    "pipelining_ops",
    "rand_ops",
    "replication_ops",
]
