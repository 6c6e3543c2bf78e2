"""Properties of options: their order does not matter, and copies are equal but independent."""

import copy
import pickle

from hypothesis import given
from hypothesis import strategies as st

from poptorch_emu.enums import MeanReductionStrategy, OutputMode, ReductionType
from poptorch_emu.options import Options, PipelinedExecution, ShardedExecution
from poptorch_emu.options.freeze import freeze

COUNTS = st.integers(1, 64)
BOOLS = st.booleans()

# Strategies for the arguments of setters, each of which sets its own options.
SETTERS = {
    "deviceIterations": COUNTS,
    "replicationFactor": COUNTS,
    "broadcastBuffers": BOOLS,
    "autoRoundNumIPUs": BOOLS,
    "randomSeed": st.integers(0, 2**31),
    "modelName": st.text(max_size=5),
    "outputMode": st.sampled_from([OutputMode.All, OutputMode.Final, OutputMode.Sum]),
    "enableExecutableCaching": st.sampled_from(["cache", None]),
    "enableProfiling": st.sampled_from(["profile", None]),
    "showCompilationProgressBar": BOOLS,
    "setExecutionStrategy": st.builds(
        lambda kind, blocks: kind(*blocks),
        st.sampled_from([PipelinedExecution, ShardedExecution]),
        st.lists(st.sampled_from("abcd"), unique=True),
    ),
    "Training.gradientAccumulation": COUNTS,
    "Training.accumulationAndReplicationReductionType": st.sampled_from(
        [ReductionType.Mean, ReductionType.Sum]
    ),
    "Training.setMeanAccumulationAndReplicationReductionStrategy": st.sampled_from(
        [MeanReductionStrategy.Running, MeanReductionStrategy.Post]
    ),
    "Precision.enableFloatingPointExceptions": BOOLS,
    "TensorLocations.numIOTiles": st.integers(16, 96).map(lambda half: 2 * half),
}


@st.composite
def calls(draw):
    """Returns setter calls, each setter at most once, always with an output mode."""
    chosen = draw(st.lists(st.sampled_from(sorted(SETTERS)), unique=True))
    names = {*chosen, "outputMode"}
    return [(name, draw(SETTERS[name])) for name in draw(st.permutations(sorted(names)))]


def options_from(setter_calls):
    options = Options()
    for path, argument in setter_calls:
        target = options
        for name in path.split("."):
            target = getattr(target, name)
        target(argument)
    return options


def visible(options):
    """Returns the comparable values of `options`, without the progress bar."""
    flat = options.toDict()
    flat.pop("compilation_progress_bar_fn", None)
    return repr(options), flat, freeze(options, is_training=True)


@given(setter_calls=calls(), data=st.data())
def test_options_set_in_any_order_then_freeze_alike(setter_calls, data):
    shuffled = data.draw(st.permutations(setter_calls))
    first, second = options_from(setter_calls), options_from(shuffled)
    assert visible(first)[1:] == visible(second)[1:]
    assert hash(freeze(first, is_training=True)) == hash(freeze(second, is_training=True))


@given(setter_calls=calls(), is_frozen=BOOLS)
def test_clone_then_equal_and_apart(setter_calls, is_frozen):
    options = options_from(setter_calls)
    if is_frozen:
        options._freeze()
    before = visible(options)
    for duplicate in (options.clone(), copy.deepcopy(options)):
        assert visible(duplicate) == before
        duplicate.deviceIterations(options.device_iterations + 1)
        duplicate.Training.gradientAccumulation(99)
        duplicate._Popart.set("enableOutlining", True)
        duplicate.anchorTensor("a", "b")
        assert visible(options) == before


@given(setter_calls=calls(), is_frozen=BOOLS)
def test_pickle_roundtrip_then_equal_and_as_frozen(setter_calls, is_frozen):
    options = options_from(setter_calls)
    if is_frozen:
        options._freeze()
    restored = pickle.loads(pickle.dumps(options))
    assert visible(restored) == visible(options)
    assert restored._is_frozen == restored.Training._is_frozen == is_frozen
    assert restored.Precision._popart is restored._Popart


@given(setter_calls=calls())
def test_to_dict_then_each_part_is_in_it_once(setter_calls):
    options = options_from(setter_calls)
    flat = options.toDict()
    parts = [
        options._execution_strategy.backendOptions(),
        options._Popart.options,
        options._values,
        options.Training.toDict(),
        options.Distributed.toDict(),
        options.TensorLocations.toDict(),
        {"compilation_progress_bar_fn"} if options._show_compilation_progress_bar else {},
    ]
    assert len(flat) == sum(map(len, parts))
    for part in parts[:-1]:
        assert part.items() <= flat.items()
