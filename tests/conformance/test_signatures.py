"""Signatures are those of the API reference (sections 2, 7 to 20), name by name.

The tables are typed in from the reference. A line is a call as it stands there; types are left out
where they say nothing of a name, a kind or a default. `...` is a default that is not written out.
"""

import ast
import inspect

import pytest
import torch

import poptorch_emu as poptorch
import poptorch_emu.testing as poptorch_testing
from poptorch_emu.executor.args_parser import flattenTensorStructure, reconstructTensorStructure
from poptorch_emu.names.log_names import setPopartLogLevel

pytestmark = pytest.mark.feature("Signatures and defaults", fidelity="exact")

OPTIONS = """
deviceIterations(device_iterations: int)
replicationFactor(replication_factor: int)
inputReplicaGrouping(input_group_size: int, input_group_type: CommGroupType)
broadcastBuffers(broadcast_buffers: bool = True)
outputMode(output_mode: OutputMode, output_return_period: Optional[int] = None)
defaultOutputMode()
anchorTensor(short_name, long_name, output_mode=None, output_return_period=1)
setExecutionStrategy(strategy)
setAvailableMemoryProportion(available_memory_proportion)
autoRoundNumIPUs(auto_round_num_ipus: bool = True)
randomSeed(random_seed: int)
enableStableNorm(enabled)
enableSyntheticData(enabled)
logCycleCount(log_cycle_count)
enableProfiling(profile_dir: Optional[str] = None)
enableExecutableCaching(path)
modelName(name: str)
logDir(log_dir: str)
maxRepeatLogs(max_lines: Optional[int])
connectionType(connection_type: ConnectionType)
syncPattern(sync_pattern: SyncPattern)
useIpuModel(use_model: bool)
useIpuId(ipu_id: int)
useOfflineIpuTarget(ipu_version: int = 2)
relaxOptimizerAttributesChecks(relax: bool = True)
showCompilationProgressBar(show: bool = True)
disableModuleNamescope()
sourceLocationExcludes(excludes: List[str])
appendToLocationExcludes(*excludes)
updatableNamedBuffers(buffers: List[str])
loadFromFile(filepath)
from_json(string)
clone()
toDict()
exists(key)
deleteIfExists(key)
update(other: dict)
"""
PRECISION = """
enableFloatingPointExceptions(enabled)
enableStochasticRounding(enabled)
setPartialsType(dtype)
halfFloatCasting(x)
runningStatisticsAlwaysFloat(value)
"""
TRAINING = """
gradientAccumulation(gradient_accumulation: int)
accumulationAndReplicationReductionType(reduction_type)
setMeanAccumulationAndReplicationReductionStrategy(mean_reduction_strategy)
setAutomaticLossScaling(enabled)
setConvolutionDithering(enabled)
"""
DISTRIBUTED = """
disable()
setEnvVarNames(var_num_processes, var_process_id)
configureProcessId(process_id, num_processes)
"""
TENSOR_LOCATIONS = """
numIOTiles(num_tiles)
setActivationLocation(location)
setWeightLocation(location)
setOptimizerLocation(location)
setAccumulatorLocation(location)
"""
POPART = """
set(key, value)
setEngineOptions(d)
setPatterns(patterns: dict, level: int = 2)
checkIsFrozen(option=None)
"""
TENSOR_LOCATION_SETTINGS = """
TensorLocationSettings()
minElementsForOffChip(min_elements)
minElementsForReplicatedTensorSharding(min_elements)
useOnChipStorage(use=True)
useReplicatedTensorSharding(use=True)
useIOTilesToLoad(use=True)
useIOTilesToStore(use=True)
toDict()
"""
EXECUTOR = """
__call__(*args, **kwargs)
compile(*args, **kwargs)
compileAndExport(filename, *args, export_model=True, **kwargs)
save(filename, export_model=True, save_rng_state=True)
loadExecutable(filename)
copyWeightsToHost()
copyWeightsToHostIfNeeded()
copyWeightsToDevice()
copyNamedBuffersToDevice()
load_state_dict(state_dict, strict=True)
setOptimizer(optimizer)
cycleCount()
compilationTime()
getPerfCounters()
getLatency()
getHostIpuLatency()
getComputeLatency()
getIpuHostLatency()
getTensorNames()
getAnchoredTensor(short_name)
isCompiled()
isAttachedToDevice()
attachToDevice()
detachFromDevice()
destroy()
__repr__()
_debugGetPopartIR()
"""
# Sections 2.3, 3, 4, 11, 12, 16.1, 17 to 21.
FUNCTIONS = """
ipuHardwareIsAvailable(num_ipus: int = 1)
ipuHardwareVersion()
isRunningOnIpu()
setLogLevel(level)
createPoptorchError(msg)
Block(user_id=None, ipu_id=None)
BeginBlock(layer_to_call, user_id=None, ipu_id=None)
LegacyBeginBlockFn(layer_to_call, user_id=None, ipu_id=None)
BlockFunction(user_id=None, ipu_id=None)
removeBlocks(module)
identity_loss(x, reduction: str)
nop(tensor)
recomputationCheckpoint(*tensors)
set_available_memory(tensor, available_memory_proportion: float)
set_overlap_for_input(input_tensors, mode: OverlapMode)
set_overlap_for_output(output_tensors, mode: OverlapMode)
serializedMatMul(lhs, rhs, mode, factor: int = 0, keep_precision: bool = False)
ipu_print_tensor(tensor, title="", print_gradient=True, summarise_threshold=1000, edge_items=3, \
max_line_width=80, digits=4, float_format="auto", separator=", ", open_bracket="(", \
close_bracket=")")
for_loop(count: int, body, inputs: List[Tensor])
cond(condition, then_body, then_inps, else_body, else_inps)
dynamic_slice(tensor, dim: int, start: Tensor, size: int, step: int)
dynamic_update(input, src, dim: int, start: Tensor, size: int)
custom_op(inputs, name: str, domain: str, domain_version: int, example_outputs, \
attributes: Optional[dict] = None)
CPU(layer_to_call, ID: str)
ctc_beam_search_decoder(probs, lengths, blank=0, beam_width=100, top_paths=1)
fps(src, ptr: List[int], ratio: float = 0.5, random_start: bool = False)
nearest(x, y, batch_x=None, batch_y=None)
MultiConv()
NameScope(name: str)
Attribute(**kwargs)
trainingModel(model, options=None, optimizer=None)
inferenceModel(model, options=None)
registerPreCompileHook(hook)
registerPostCompileHook(hook)
load(filename, edit_opts_fn=None)
importPoptorchMetadataFromFile(filename)
registerCustomArgParser(arg_data_type, arg_parser)
registerGeometricCustomArgParsers()
module_repr(m)
print(m)
getIpuTensorId(t)
accessAttributes(attribute_id_str)
Options()
Stage(*block_ids: str)
Phase(*arg)
PipelinedExecution(*args)
ShardedExecution(*args)
SerialPhasedExecution(*phases)
ParallelPhasedExecution(*phases)
DataLoader(options, dataset, batch_size=1, shuffle=None, num_workers=0, drop_last=True, \
persistent_workers=None, auto_distributed_partitioning=True, mode=DataLoaderMode.Sync, \
async_options=None, rebatched_worker_size=None, batch_sampler=None, **kwargs)
AsynchronousDataAccessor(dataset, buffer_size=3, miss_sleep_time_in_ms=0.1, \
load_indefinitely=True, early_preload=False, sharing_strategy=SharingStrategy.ForkServer, \
rebatched_size=None)
"""
# Section 13.2. Arguments that PyTorch has added since are passed by keyword, as the reference
# advises.
OPTIMIZERS = """
SGD(params, lr, momentum=None, dampening=None, weight_decay=None, nesterov=None, maximize=None, \
foreach=None, differentiable=None, loss_scaling=None, velocity_scaling=None, \
use_combined_accum=None, accum_type=None, velocity_accum_type=None, max_grad_norm=None, \
**torch_arguments)
Adam(params, lr=None, betas=None, eps=None, weight_decay=None, amsgrad=None, foreach=None, \
maximize=None, capturable=None, differentiable=None, fused=None, loss_scaling=None, \
accum_type=None, first_order_momentum_accum_type=None, second_order_momentum_accum_type=None, \
max_grad_norm=None, **torch_arguments)
AdamW(params, lr=None, betas=None, eps=None, weight_decay=None, amsgrad=None, maximize=None, \
foreach=None, capturable=None, differentiable=None, fused=None, loss_scaling=None, \
bias_correction=None, accum_type=None, first_order_momentum_accum_type=None, \
second_order_momentum_accum_type=None, max_grad_norm=None, **torch_arguments)
RMSprop(params, lr=None, alpha=None, eps=None, weight_decay=None, momentum=None, centered=None, \
foreach=None, maximize=None, differentiable=None, loss_scaling=None, accum_type=None, \
first_order_momentum_accum_type=None, second_order_momentum_accum_type=None, \
use_tf_variant=None, **torch_arguments)
LAMB(params, lr=None, betas=None, eps=None, weight_decay=None, bias_correction=None, \
loss_scaling=None, max_weight_norm=None, accum_type=None, first_order_momentum_accum_type=None, \
second_order_momentum_accum_type=None)
"""
STAGE = "ipu(ipu: int)"
PHASE = "stage(idx)\nipus(*ipus)"
STRATEGY = "stage(block_id)\nonStartTracing()\nonEndTracing()\nbackendOptions()"
PHASED = STRATEGY + "\nphase(n)\nuseSeparateBackwardPhase(use=True)"
MULTI_CONV = """
availableMemoryProportions(value)
partialsTypes(value)
enableConvDithering(value)
planType(value)
perConvReservedTiles(value: int)
cycleBackOff(value: float)
"""

_model = poptorch.inferenceModel(torch.nn.Linear(1, 1))
_options = poptorch.Options()
_methods_of = {
    _options: OPTIONS,
    _options.Precision: PRECISION,
    _options.Training: TRAINING,
    _options.Jit: "traceModel(trace_model: bool)",
    _options.Distributed: DISTRIBUTED,
    _options.TensorLocations: TENSOR_LOCATIONS,
    _options._Popart: POPART,
    poptorch.TensorLocationSettings(): TENSOR_LOCATION_SETTINGS,
    _model: EXECUTOR,
    _model.weight: "replicaGrouping(comm_group_type, shards, variable_retrieval_mode)",
    poptorch: FUNCTIONS,
    poptorch.optim: OPTIMIZERS,
    poptorch.Stage("a"): STAGE,
    poptorch.Phase("a"): PHASE,
    poptorch.PipelinedExecution(): STRATEGY,
    poptorch.ShardedExecution(): STRATEGY,
    poptorch.SerialPhasedExecution("a"): PHASED + "\nsetTensorsLiveness(liveness)",
    poptorch.ParallelPhasedExecution("a"): PHASED + "\nsendTensorsOffChipAfterFwd(off_chip=True)",
    poptorch.Block: "start(user_id=None, ipu_id=None)\nuseAutoId()",
    poptorch.MultiConv(): MULTI_CONV,
    poptorch.profiling: "Channel(name)",
    poptorch.profiling.Channel("a"): "instrument(obj, *methods)\ntracepoint(name)",
    poptorch.poptorch_core: "ipuHardwareVersion(num_ipus=1)\n_validateOptions(options)",
}
# Classes that are abstract, or whose instances are expensive to create.
_METHODS_OF_CLASS = {
    poptorch.ICustomArgParser: "yieldTensors(struct)\n"
    "reconstruct(original_structure, tensor_iterator)",
    poptorch.DataLoader: "terminate()\n__len__()\n__iter__()",
    poptorch.AsynchronousDataAccessor: "terminate()\n__len__()\n__iter__()\n__next__()",
}
_ALONE = {
    flattenTensorStructure: "flattenTensorStructure(x, canonical=None)",
    reconstructTensorStructure: "reconstructTensorStructure(structure, values, filter_fn=...)",
    poptorch_testing.allclose: "allclose(ref, other)",
    setPopartLogLevel: "setPopartLogLevel(level)",
}
_ENUMS = {name: getattr(poptorch, name) for name in ("DataLoaderMode", "SharingStrategy")}


def _name(line):
    return line.partition("(")[0]


def _documented(line, has_self=False):
    """Returns name, kind and default (as text) of each parameter of a call as documented."""
    text = line.replace("(", "(self, ", 1) if has_self else line
    function = ast.parse(f"def {text}: ...").body[0]
    spec = function.args
    found = []
    positional = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(positional) - len(spec.defaults)) + list(spec.defaults)
    for argument, default in zip(positional, defaults, strict=True):
        found.append((argument.arg, "POSITIONAL_OR_KEYWORD", _value(default)))
    if spec.vararg:
        found.append((spec.vararg.arg, "VAR_POSITIONAL", "none"))
    for argument, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        found.append((argument.arg, "KEYWORD_ONLY", _value(default)))
    if spec.kwarg:
        found.append((spec.kwarg.arg, "VAR_KEYWORD", "none"))
    return found


def _value(node):
    if node is None:
        return "none"
    return repr(eval(compile(ast.Expression(node), "<default>", "eval"), dict(_ENUMS)))


def _actual(called, like):
    open_defaults = {name for name, _, default in like if default == "Ellipsis"}
    found = []
    for parameter in inspect.signature(called).parameters.values():
        default = "none" if parameter.default is parameter.empty else repr(parameter.default)
        if parameter.name in open_defaults and default != "none":
            default = "Ellipsis"
        found.append((parameter.name, parameter.kind.name, default))
    return found


def _lines(table):
    return [line for line in table.strip().splitlines() if line]


def _cases():
    for owner, table in _methods_of.items():
        for line in _lines(table):
            name = _name(line)
            is_class = type(owner).__name__ == name
            yield pytest.param(
                lambda owner=owner, name=name, is_class=is_class: (
                    type(owner) if is_class else getattr(owner, name)
                ),
                line,
                False,
                id=f"{getattr(owner, '__name__', type(owner).__name__)}.{name}",
            )
    for owner, table in _METHODS_OF_CLASS.items():
        for line in _lines(table):
            yield pytest.param(
                lambda owner=owner, line=line: getattr(owner, _name(line)),
                line,
                True,
                id=f"{owner.__name__}.{_name(line)}",
            )
    for function, line in _ALONE.items():
        yield pytest.param(lambda function=function: function, line, False, id=_name(line))


@pytest.mark.parametrize(("find", "line", "has_self"), list(_cases()))
def test_callable_then_has_the_documented_parameters_and_defaults(find, line, has_self):
    documented = _documented(line, has_self)
    assert _actual(find(), documented) == documented


def test_function_of_section_2_1_then_is_in_the_table():
    listed = {_name(line) for line in _lines(FUNCTIONS)}
    described = {"ICustomArgParser", "TensorLocationSettings", "PoplarExecutor", "BlockId"}
    missing = [
        name
        for name in poptorch.__all__
        if callable(getattr(poptorch, name))
        and not hasattr(getattr(poptorch, name), "__members__")
        and not (
            isinstance(getattr(poptorch, name), type)
            and issubclass(getattr(poptorch, name), Exception)
        )
        and name not in listed | described
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("owner", "name", "is_settable"),
    [
        *((poptorch.Options, name, False) for name in ("Training", "Precision", "Jit", "_Popart")),
        *((poptorch.Options, name, False) for name in ("Distributed", "TensorLocations")),
        (type(_options.Distributed), "processId", False),
        (type(_options.Distributed), "numProcesses", False),
        (poptorch.PoplarExecutor, "rng_state", True),
        (poptorch.PoplarExecutor, "model", False),
        (poptorch.PoplarExecutor, "options", False),
        (poptorch.Stage, "blocks", False),
        (poptorch.DataLoader, "combinedBatchSize", False),
        (poptorch.DataLoader, "options", False),
    ],
)
def test_property_then_is_one(owner, name, is_settable):
    found = inspect.getattr_static(owner, name)
    assert isinstance(found, property)
    assert (found.fset is not None) == is_settable
