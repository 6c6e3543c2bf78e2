"""Every name that programs find in `poptorch` is there (API reference, sections 2, 20, 21)."""

import importlib
import typing

import pytest
import torch

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Public names", fidelity="exact")

# Public names of section 2.1.
PUBLIC = """
Error RecoverableError UnrecoverableError ConfigFileError Options TensorLocationSettings Attribute
PipelinedExecution ShardedExecution ParallelPhasedExecution SerialPhasedExecution Stage Phase
BlockId Block BeginBlock BlockFunction removeBlocks LegacyBeginBlockFn
MeanReductionStrategy DataLoaderMode SharingStrategy OutputMode ConnectionType
HalfFloatCastingBehavior ReductionType SyncPattern MatMulSerializationMode Liveness OverlapMode
AutoStage MultiConvPlanType CommGroupType VariableRetrievalMode
ctc_beam_search_decoder ipu_print_tensor for_loop cond nop dynamic_slice dynamic_update
recomputationCheckpoint serializedMatMul set_available_memory set_overlap_for_input
set_overlap_for_output custom_op CPU identity_loss fps nearest MultiConv NameScope attributes_lists
optim DataLoader AsynchronousDataAccessor trainingModel inferenceModel PoplarExecutor
registerPreCompileHook registerPostCompileHook load importPoptorchMetadataFromFile
ICustomArgParser registerCustomArgParser registerGeometricCustomArgParsers
profiling print module_repr setLogLevel logger ipuHardwareIsAvailable ipuHardwareVersion
isRunningOnIpu createPoptorchError accessAttributes getIpuTensorId poptorch_core __version__
""".split()

# Names of PopTorch's C++ module (section 21). Those in CORE_ELSEWHERE raise an error that names the
# replacement.
CORE = """
Error RecoverableError UnrecoverableError _validateOptions _throwTestError TestErrorType
isCompilingWithDispatcher ipuHardwareVersion setLogLevel importPoptorchMetadataFromFile
CompilerOptions TracingMode setPopartLogLevel poptorchAtExit getIpuTensorId
""".split()
CORE_ELSEWHERE = """
isGraphNondeterministic saveExecutableToFile appendPoptorchMetadataToFile cycleCount execute
updateOptimizers getTimestamps readOptimizerState writeOptimizerState setRngState getRngState
getRandomSeed loadEngineAndConnectStreams copyWeightsToDevice_impl copyWeightsToHost_impl
copyNamedBuffersToDevice_impl setCustomCodeletsPath _getPopartIR _getTensorNames attachToDevice
detachFromDevice isAttachedToDevice registerCPUCallBack isAlreadyRegistered
registerBuffersWithCallback destroyDispatcher startDispatch endDispatch startParametersMove
endParametersMove startOutputsMove endOutputsMove createGraph mapParamsToNames setPerReplica
finalizeGraph compileWithManualTracing processDispatchAndImportExecutable
""".split()


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_then_is_there_and_listed(name):
    assert hasattr(poptorch, name)
    assert name in poptorch.__all__


def test_all_then_lists_nothing_twice_and_only_what_exists():
    assert len(poptorch.__all__) == len(set(poptorch.__all__))
    assert [name for name in poptorch.__all__ if not hasattr(poptorch, name)] == []


@pytest.mark.parametrize("name", CORE)
def test_core_name_then_is_there(name):
    assert hasattr(poptorch.poptorch_core, name)


@pytest.mark.parametrize("name", CORE_ELSEWHERE)
def test_core_name_of_the_compiler_then_says_what_does_its_work(name):
    with pytest.raises(AttributeError, match=rf"poptorch_core\.{name}, .* Its replacement is \w"):
        getattr(poptorch.poptorch_core, name)


def test_core_name_when_it_never_was_there_then_says_so():
    with pytest.raises(AttributeError, match="'poptorch.poptorch_core' has no attribute 'run'"):
        poptorch.poptorch_core.run()


def test_core_options_then_hold_what_programs_set():
    options = poptorch.poptorch_core.CompilerOptions()
    options.source_location_excludes += ["site-packages"]
    assert options.source_location_excludes == ["site-packages"]
    assert poptorch.poptorch_core.TracingMode.PopART.name == "PopART"
    assert poptorch.poptorch_core.poptorchAtExit() is None
    with pytest.raises(ValueError, match="^Level must be one of "):
        poptorch.poptorch_core.setPopartLogLevel("LOUD")


@pytest.mark.parametrize(
    "name",
    ["enums", "ops", "options", "abc", "atexit", "copy", "copyreg", "enum", "functools"]
    + ["importlib", "json", "os", "pickle", "torch"],
)
def test_leaked_module_then_is_that_module(name):
    own = f"poptorch_emu.{name}"
    expected = own if name in ("enums", "ops", "options") else name
    assert getattr(poptorch, name) is importlib.import_module(expected)


@pytest.mark.parametrize(
    "name", ["Any", "Callable", "Dict", "List", "Optional", "Set", "Tuple", "Union", "Type"]
)
def test_leaked_type_then_is_of_typing(name):
    assert getattr(poptorch, name) is getattr(typing, name)


def test_other_leaked_names_then_work():
    assert poptorch.ATTR_PREFIX == "attr:"
    assert poptorch.flattenTensorStructure([1, torch.ones(2)])[0].shape == (2,)
    assert poptorch.OrderedDict(a=1) == {"a": 1}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("_logging", "setPopartLogLevel"),
        ("_impl", "unwrapModelIfNecessary"),
        ("_utils", "flattenTensorStructure"),
        ("_poplar_executor", "PoplarExecutor"),
        ("_args_parser", "ICustomArgParser"),
        ("_args_parser", "ArgsParser"),
        ("_utils", "combine_batch_tensors_gen"),
        ("_poplar_executor", "_OverwriteContextManager"),
    ],
)
def test_private_module_then_is_an_attribute_with_what_programs_use(module, name):
    assert hasattr(getattr(poptorch, module), name)


@pytest.mark.parametrize("name", ["IPUContext", "autocast_enabled", "cast", "ipu"])
def test_old_name_then_is_an_attribute_error_that_names_the_way_out(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'.* of an older PopTorch"):
        getattr(poptorch, name)


def test_unknown_name_then_is_the_usual_attribute_error_with_the_nearest_name():
    usual = "module 'poptorch' has no attribute 'Optoins'"
    with pytest.raises(AttributeError, match=rf"^{usual}\. Did you mean 'Options'\?$"):
        poptorch.Optoins()
