"""The IPU's part of Keras and TensorFlow programs: configuration, strategy, stages, loops (exact).

Names are those of the IPU's front end for TensorFlow. Names without a counterpart raise an error
that says the way out.
"""

import importlib
from typing import Any

from poptorch_emu.keras.ipu import (
    config,
    gradient_accumulation,
    ipu_strategy,
    refused_modules,
)
from poptorch_emu.keras.ipu.ops import __all__ as operations
from poptorch_emu.keras.ipu.ops import pipelining_ops
from poptorch_emu.keras.ipu.ops.functional_ops import outlined_function as outlined_function
from poptorch_emu.keras.keras_2 import old_programs
from poptorch_emu.near_names import did_you_mean

__all__ = [
    "config",
    "gradient_accumulation",
    "ipu_infeed_queue",
    "ipu_outfeed_queue",
    "ipu_strategy",
    "keras",
    "loops",
    "optimizers",
    "pipelining_ops",
    "utils",
]

refused_modules.register(__name__)
old_programs.install()
ipu_strategy.join_tensorflow()

# Submodules that are loaded at their first use, because few programs need them.
_LATE = {
    **{name: f".{name}" for name in (*__all__, "distributed")},
    "horovod": ".distributed",
    **{name: f".ops.{name}" for name in operations},
}


def __getattr__(name: str) -> Any:
    """Loads a submodule at its first use.

    Raises:
        AttributeError: the name does not exist.
    """
    if name in _LATE:
        return importlib.import_module(_LATE[name], __name__)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}: it has {__all__}."
        f"{did_you_mean(name, __all__)}"
    )
