"""PopTorch programs on virtual IPUs: `import poptorch_emu as poptorch`."""

from poptorch_emu import optim
from poptorch_emu.args_parser import (
    ICustomArgParser,
    registerCustomArgParser,
    registerGeometricCustomArgParsers,
)
from poptorch_emu.blocks import (
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    removeBlocks,
)
from poptorch_emu.data_accessor import AsynchronousDataAccessor
from poptorch_emu.dataloader import DataLoader
from poptorch_emu.enums import (
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from poptorch_emu.errors import (
    ConfigFileError,
    Error,
    RecoverableError,
    UnrecoverableError,
)
from poptorch_emu.errors import make_error as createPoptorchError  # noqa: N812
from poptorch_emu.executor import PoplarExecutor
from poptorch_emu.factories import inferenceModel, trainingModel
from poptorch_emu.hooks import registerPostCompileHook, registerPreCompileHook
from poptorch_emu.loading import load
from poptorch_emu.log import logger
from poptorch_emu.log import set_log_level as setLogLevel  # noqa: N812
from poptorch_emu.module_repr import module_repr
from poptorch_emu.ops import identity_loss, nop, recomputationCheckpoint, set_available_memory
from poptorch_emu.options import (
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    TensorLocationSettings,
)
from poptorch_emu.saving import importPoptorchMetadataFromFile
from poptorch_emu.trace.blocks import is_tracing as isRunningOnIpu  # noqa: N812
from poptorch_emu.version import __version__

__all__ = [
    "AsynchronousDataAccessor",
    "AutoStage",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "CommGroupType",
    "ConfigFileError",
    "ConnectionType",
    "DataLoader",
    "DataLoaderMode",
    "Error",
    "HalfFloatCastingBehavior",
    "ICustomArgParser",
    "LegacyBeginBlockFn",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConvPlanType",
    "Options",
    "OutputMode",
    "OverlapMode",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "PoplarExecutor",
    "RecoverableError",
    "ReductionType",
    "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncPattern",
    "TensorLocationSettings",
    "UnrecoverableError",
    "VariableRetrievalMode",
    "__version__",
    "createPoptorchError",
    "identity_loss",
    "importPoptorchMetadataFromFile",
    "inferenceModel",
    "isRunningOnIpu",
    "load",
    "logger",
    "module_repr",
    "nop",
    "optim",
    "recomputationCheckpoint",
    "registerCustomArgParser",
    "registerGeometricCustomArgParsers",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "removeBlocks",
    "set_available_memory",
    "setLogLevel",
    "trainingModel",
]
