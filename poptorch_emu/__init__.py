"""PopTorch programs on virtual IPUs: `import poptorch_emu as poptorch`."""

from typing import TYPE_CHECKING, Any

from poptorch_emu.module_loading import without_garbage_collection

with without_garbage_collection():
    # Imported here because it needs nearly all other modules.
    from poptorch_emu.executor.factories import inferenceModel, trainingModel

# isort: split
from poptorch_emu import optim, profiling
from poptorch_emu.data.data_accessor import AsynchronousDataAccessor
from poptorch_emu.data.dataloader import DataLoader
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
from poptorch_emu.executor.args_parser import (
    ICustomArgParser,
    registerCustomArgParser,
    registerGeometricCustomArgParsers,
)
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.executor.hooks import registerPostCompileHook, registerPreCompileHook
from poptorch_emu.executor.loading import load
from poptorch_emu.executor.module_repr import module_repr, print
from poptorch_emu.executor.saving import importPoptorchMetadataFromFile
from poptorch_emu.log import logger
from poptorch_emu.log import set_log_level as setLogLevel  # noqa: N812
from poptorch_emu.names import import_effects, native_core, unlisted_names
from poptorch_emu.names.native_core import getIpuTensorId
from poptorch_emu.ops import (
    CPU,
    Attribute,
    MultiConv,
    NameScope,
    cond,
    ctc_beam_search_decoder,
    custom_op,
    dynamic_slice,
    dynamic_update,
    for_loop,
    fps,
    identity_loss,
    ipu_print_tensor,
    nearest,
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from poptorch_emu.ops.attribute_lists import accessAttributes, attributes_lists
from poptorch_emu.ops.block_annotations import (
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    removeBlocks,
)
from poptorch_emu.options import (
    BlockId,
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    TensorLocationSettings,
)
from poptorch_emu.runtime.devices import is_hardware_available as ipuHardwareIsAvailable  # noqa: N812
from poptorch_emu.trace.places.blocks import is_tracing as isRunningOnIpu  # noqa: N812
from poptorch_emu.version import __version__

if TYPE_CHECKING:
    from poptorch_emu import emulator

poptorch_core = native_core

__all__ = [
    "AsynchronousDataAccessor",
    "Attribute",
    "AutoStage",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "BlockId",
    "CPU",
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
    "MultiConv",
    "MultiConvPlanType",
    "NameScope",
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
    "accessAttributes",
    "attributes_lists",
    "cond",
    "createPoptorchError",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "emulator",
    "for_loop",
    "fps",
    "getIpuTensorId",
    "identity_loss",
    "importPoptorchMetadataFromFile",
    "inferenceModel",
    "ipu_print_tensor",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "isRunningOnIpu",
    "load",
    "logger",
    "module_repr",
    "nearest",
    "nop",
    "optim",
    "poptorch_core",
    "print",
    "profiling",
    "recomputationCheckpoint",
    "registerCustomArgParser",
    "registerGeometricCustomArgParsers",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "removeBlocks",
    "serializedMatMul",
    "setLogLevel",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    "trainingModel",
]


def ipuHardwareVersion() -> int:
    """Returns the version of the virtual system's IPUs: 1, 2 or 21 (exact).

    Raises:
        AssertionError: there is no virtual system.
    """
    return native_core.ipuHardwareVersion()


def __getattr__(name: str) -> Any:
    """Returns names that are loaded late, names that PopTorch's files leak, and old names."""
    return unlisted_names.find(name, __all__)


def __dir__() -> list[str]:
    """Returns all names, also those that are loaded late, for completion in editors."""
    return sorted({*globals(), *__all__})


import_effects.apply()
