"""The IPU's part of Keras programs: configuration, strategy, pipeline stages (exact).

Names are those of the IPU's front end for TensorFlow, as far as Keras programs need them. What
belongs to TensorFlow is refused with the way out.
"""

from typing import Any

from poptorch_emu.keras.ipu import (
    config,
    gradient_accumulation,
    ipu_strategy,
    keras,
    pipelining_ops,
)
from poptorch_emu.near_names import did_you_mean

__all__ = ["config", "gradient_accumulation", "ipu_strategy", "keras", "pipelining_ops"]

_FEED_QUEUES = "Pass arrays, a keras.utils.PyDataset or a PyTorch DataLoader to fit and its like."
_TORCH = "Write the program for PopTorch, with poptorch.trainingModel."
_WAYS_OUT = {
    "ipu_infeed_queue": _FEED_QUEUES,
    "ipu_outfeed_queue": _FEED_QUEUES,
    "loops": "Use steps_per_execution of compile.",
    "ipu_compiler": _TORCH,
    "scopes": _TORCH,
    "ops": _TORCH,
    "layers": "Use the layers of keras.layers.",
    "optimizers": "Use SGD, Adam, AdamW or RMSprop of keras.optimizers.",
    "serving": _TORCH,
    "horovod": "Use several replicas in one process: IPUConfig.auto_select_ipus.",
    "distributed": "Use several replicas in one process: IPUConfig.auto_select_ipus.",
    "ipu_multi_worker_strategy": "Use several replicas in one process: IPUConfig.auto_select_ipus.",
    "utils": "Use ipu.config.IPUConfig.",
}


def __getattr__(name: str) -> Any:
    """Refuses what belongs to TensorFlow.

    Raises:
        AttributeError: always; the message has the way out.
    """
    way_out = _WAYS_OUT.get(name)
    if way_out is None:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}: it has {__all__}."
            f"{did_you_mean(name, __all__)}"
        )
    raise AttributeError(f"{__name__}.{name} is not offered on Keras 3 (refused). {way_out}")
