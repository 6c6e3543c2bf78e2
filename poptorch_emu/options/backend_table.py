"""Names and kinds of the options of the layer below PopTorch.

`popart.py` reads this data. If a kind has a second paragraph, it lists options that PopTorch
itself writes.
"""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """The kind of a value in the backend, as its error messages name it."""

    BOOL = "bool"
    UINT64 = "uint64"
    FLOAT = "floating point"
    STRING = "string"
    SET = "set / vector"
    MAP = "map"


_BOOL = """
    enableExplicitIR enableInplaceAmbiguityChecking enableLoadAndOffloadRNGState
    batchSerializationSettings.concatOnVirtualGraphChange
    batchSerializationSettings.concatOnExecutionPhaseChange
    batchSerializationSettings.concatOnPipelineStageChange
    strictOpVersions opxAliasChecking opxModifyChecking dotOpNames exportPoplarComputationGraph
    exportPoplarVertexGraph separateCallOpPdfs enableOutlining enableOutliningCopyCostPruning
    rearrangeAnchorsOnHost rearrangeStreamsOnHost enablePrefetchDatastreams enableNonStableSoftmax
    enableReplicatedGraphs enableGradientAccumulation instrumentWithHardwareCycleCounter
    enablePipelining disableGradAccumulationTensorStreams disableOptimizerStateTensorStreams
    compileEngine constantWeights enableEngineCaching enableMergeExchange enableFloatingPointChecks
    enableStochasticRounding ensureFp32LossScaleTensor explicitRecomputation enableExplicitMainLoops
    useHostCopyOps aliasZeroCopy delayVarUpdates enableFullyConnectedPass enableSerializedMatmuls
    enableStableNorm decomposeGradSum enableDistributedReplicatedGraphs groupHostSync
    automaticLossScalingSettings.enabled enableSupportedDataTypeCasting
    groupNormStridedChannelGrouping scheduleNonWeightUpdateGradientConsumersEarly
    replicatedCollectivesSettings.prepareScheduleForMergingCollectives
    replicatedCollectivesSettings.mergeAllReduceCollectives

    auto_round_num_ipus use_model serial_phases_execution separate_backward_phase broadcast_buffers
"""

_UINT64 = """
    executionPhaseSettings.phases executionPhaseSettings.stages batchSerializationSettings.factor
    firstDotOp finalDotOp numIOTiles mergeVarUpdateMemThreshold looseThresholdAtPeak
    accumulationFactor swapLimitScheduler globalReplicationFactor globalReplicaOffset
    defaultBufferingDepth defaultPrefetchBufferingDepth compilationProgressTotal
    transitiveClosureOptimizationThreshold automaticLossScalingSettings.updatePeriod

    device_iterations num_distributed_processes distributed_process_id ipu_version ipu_id
    gradient_accumulation output_return_period replication_factor input_group_size input_cgt
    execution_mode tensors_liveness output_mode connection_type max_repeat_logs
    accumulation_and_replication_reduction_type sync_pattern random_seed patterns_level
"""

_UINT64_OF_UNKNOWN_RANGE = """
    autodiffSettings.stitchStrategy batchSerializationSettings.transformContext
    batchSerializationSettings.method batchSerializationSettings.batchSchedule
    mergeVarUpdate subgraphCopyingStrategy
    automaticLossScalingSettings.gradientTensorTrackingMethod
"""
"""Enumerations of the backend with an undocumented number of members: any value is accepted."""

ENUM_OF_OPTION: dict[str, tuple[str, int]] = {
    "autoRecomputation": ("RecomputationType", 5),
    "virtualGraphMode": ("VirtualGraphMode", 4),
    "syntheticDataMode": ("SyntheticDataMode", 4),
    "accumulationAndReplicationReductionType": ("ReductionType", 3),
    "meanAccumulationAndReplicationReductionStrategy": ("MeanReductionStrategy", 2),
    "accumulateOuterFragmentSettings.schedule": ("AccumulateOuterFragmentSchedule", 4),
}
"""Options of kind uint64 that are enumerations of the backend: name and number of members."""

_FLOAT = """
    outlineSequenceBreakCost outlineThreshold timeLimitScheduler
    automaticLossScalingSettings.thresholdUpperCountProportion
    automaticLossScalingSettings.binEdgeLocation
"""

_STRING = """
    cachePath partialsTypeMatMuls customCodeletCompileFlags serializedPoprithmsShiftGraphsDir
    kahnTieBreaker saveInitializersToFile logDir

    log_dir model_name
"""

_SET = """
    dotChecks hardwareInstrumentations customCodelets updatableNamedBuffers
    accumulateOuterFragmentSettings.excludedVirtualGraphs
"""

_MAP = "engineOptions reportOptions convolutionOptions matmulOptions lstmOptions gclOptions"

OPTIONS_OF_KIND: dict[Kind, frozenset[str]] = {
    Kind.BOOL: frozenset(_BOOL.split()),
    Kind.UINT64: frozenset([*_UINT64.split(), *_UINT64_OF_UNKNOWN_RANGE.split(), *ENUM_OF_OPTION]),
    Kind.FLOAT: frozenset(_FLOAT.split()),
    Kind.STRING: frozenset(_STRING.split()),
    Kind.SET: frozenset(_SET.split()),
    Kind.MAP: frozenset(_MAP.split()),
}

TENSOR_LOCATIONS = frozenset({"activation", "weight", "optimizer", "accumulator"})
"""Names of options without their prefix "location_"."""

TENSOR_LOCATION_OPTIONS = frozenset(
    """
    minElementsForOffChip minElementsForReplicatedTensorSharding onChip useReplicatedTensorSharding
    useIOTilesToLoad useIOTilesToStore
    """.split()
)
