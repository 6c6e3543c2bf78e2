"""`poptorch.options`: the options of a model, in PopTorch's spelling.

The module also exports some private names, because programs use them.
"""

from poptorch_emu.errors import ConfigFileError
from poptorch_emu.options.base import OptionsDict
from poptorch_emu.options.distributed import _DistributedOptions
from poptorch_emu.options.options import Options
from poptorch_emu.options.popart import _PopartOptions
from poptorch_emu.options.precision import _PrecisionOptions
from poptorch_emu.options.strategies import (
    BlockId,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    _IExecutionStrategy,
)
from poptorch_emu.options.tensor_locations import TensorLocationSettings, _TensorLocationOptions
from poptorch_emu.options.training import _JitOptions, _TrainingOptions

__all__ = [
    "BlockId",
    "ConfigFileError",
    "Options",
    "OptionsDict",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
    "_DistributedOptions",
    "_IExecutionStrategy",
    "_JitOptions",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
]
