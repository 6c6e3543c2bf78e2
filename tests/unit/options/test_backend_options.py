"""Options of PopART: the known names, and the kind of value for each."""

import pytest

from poptorch_emu.enums import MeanReductionStrategy, OutputMode, ReductionType
from poptorch_emu.errors import Error
from poptorch_emu.options import Options, TensorLocationSettings
from poptorch_emu.options.popart import validate_options

pytestmark = pytest.mark.feature("Options._Popart", fidelity="accepted")

VALUE_OF_KIND = {
    "bool": True,
    "uint64": 1,
    "floating point": 0.5,
    "string": "text",
    "set / vector": ["text"],
    "map": {"key": "text"},
}
# The first and the last option of each kind in the table.
SAMPLES = {
    "bool": ["enableExplicitIR", "replicatedCollectivesSettings.mergeAllReduceCollectives"],
    "uint64": ["firstDotOp", "virtualGraphMode", "subgraphCopyingStrategy", "random_seed"],
    "floating point": ["timeLimitScheduler", "automaticLossScalingSettings.binEdgeLocation"],
    "string": ["cachePath", "model_name"],
    "set / vector": ["dotChecks", "accumulateOuterFragmentSettings.excludedVirtualGraphs"],
    "map": ["engineOptions", "gclOptions"],
}
PAIRS = [
    (name, kind, value_kind)
    for kind, names in SAMPLES.items()
    for name in names
    for value_kind in VALUE_OF_KIND
]


@pytest.mark.parametrize(("name", "kind", "value_kind"), PAIRS)
def test_option_then_takes_values_of_its_kind_only(name, kind, value_kind):
    options = {name: VALUE_OF_KIND[value_kind]}
    if kind == value_kind:
        validate_options(options)
    else:
        with pytest.raises(Error, match=f"Unknown {value_kind} option {name}") as caught:
            validate_options(options)
        assert f"of type {kind}" in caught.value.message


@pytest.mark.parametrize("kind", VALUE_OF_KIND)
def test_option_when_name_unknown_then_refused_for_every_kind(kind):
    with pytest.raises(Error, match=f"Unknown {kind} option noSuchOption") as caught:
        validate_options({"noSuchOption": VALUE_OF_KIND[kind]})
    assert caught.value.type == "poptorch_cpp_error"


@pytest.mark.parametrize("empty", [{}, [], ()], ids=repr)
def test_option_when_value_is_empty_then_never_looked_at(empty):
    validate_options({"noSuchOption": empty})


@pytest.mark.parametrize("value", [None, 1j, b"bytes"], ids=repr)
def test_option_when_value_cannot_be_passed_then_refused(value):
    with pytest.raises(Error, match="Unknown value type .* for option firstDotOp"):
        validate_options({"firstDotOp": value})


@pytest.mark.parametrize(
    ("name", "last", "enum_name"),
    [
        ("autoRecomputation", 4, "RecomputationType"),
        ("virtualGraphMode", 3, "VirtualGraphMode"),
        ("syntheticDataMode", 3, "SyntheticDataMode"),
        ("accumulateOuterFragmentSettings.schedule", 3, "AccumulateOuterFragmentSchedule"),
        ("accumulationAndReplicationReductionType", 2, "ReductionType"),
        ("meanAccumulationAndReplicationReductionStrategy", 1, "MeanReductionStrategy"),
    ],
)
def test_enumeration_then_last_member_passes_and_the_next_is_out_of_range(name, last, enum_name):
    validate_options({name: last})
    with pytest.raises(Error, match=f"Value for {enum_name} out of range"):
        validate_options({name: last + 1})


def test_post_and_loss_then_fails_at_validation_not_before():
    options = Options().outputMode(OutputMode.Final)
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(
        MeanReductionStrategy.PostAndLoss
    )
    with pytest.raises(Error, match="Value for MeanReductionStrategy out of range"):
        validate_options(options.toDict())


@pytest.mark.parametrize(
    ("name", "value"),
    [("engineOptions", {"a": 0.5}), ("customCodelets", [None]), ("lstmOptions", {1.5: "a"})],
    ids=["map-value", "set-element", "map-key"],
)
def test_container_when_element_has_no_text_then_refused(name, value):
    with pytest.raises(Error, match="Don't know how to convert type .* to string"):
        validate_options({name: value})


def test_container_then_booleans_and_enums_become_numbers(caplog):
    caplog.set_level("DEBUG", logger="poptorch:cpp")
    validate_options({"matmulOptions": {"flag": True, "type": ReductionType.NoReduction}})
    validate_options({"hardwareInstrumentations": {4}, "enableOutlining": False})
    assert [record.message for record in caplog.records] == [
        "poptorch.Options set matmulOptions[flag] to 1",
        "poptorch.Options set matmulOptions[type] to 2",
        "poptorch.Options added 4 to hardwareInstrumentations",
        "poptorch.Options set enableOutlining to value False",
    ]


def test_log_dir_then_ignored_with_a_warning_naming_the_option(caplog):
    validate_options({"logDir": "/tmp"})
    text = caplog.text
    assert caplog.records[0].name == "poptorch:cpp"
    assert 'Ignoring call to poptorch.Options._Popart.set("logDir",...)' in text
    assert "poptorch.Options.logDir()" in text


def test_patterns_without_level_then_refused():
    with pytest.raises(Error, match="PopART option 'patterns' should not be set without first"):
        validate_options({"patterns": {"OpToIdentity": True}})


def test_set_patterns_then_sets_level_and_passes():
    options = Options().outputMode(OutputMode.All)
    assert options._Popart.setPatterns({"OpToIdentity": False}, level=3) is options._Popart
    assert options._Popart.options["patterns_level"] == 3
    validate_options(options.toDict())


@pytest.mark.parametrize("arguments", [(["a"],), ({}, "2")], ids=["patterns", "level"])
def test_set_patterns_when_type_is_wrong_then_asserts(arguments):
    with pytest.raises(AssertionError, match="must be of type"):
        Options()._Popart.setPatterns(*arguments)


@pytest.mark.parametrize(
    ("proportion", "word"), [(1e39, "high"), (float("inf"), "high"), (-1e39, "low")]
)
def test_memory_proportion_beyond_float32_then_refused(proportion, word):
    options = Options().outputMode(OutputMode.All)
    options.setAvailableMemoryProportion({"IPU1": proportion})
    with pytest.raises(Error, match=f"is too {word} for a Popart float attribute\\."):
        validate_options(options.toDict())


def test_locations_then_known_names_pass_and_others_do_not():
    settings = TensorLocationSettings().useOnChipStorage(False).useIOTilesToLoad()
    validate_options({"location_weight": settings.toDict()})
    with pytest.raises(Error, match="Unknown tensor location bias"):
        validate_options({"location_bias": settings.toDict()})
    with pytest.raises(Error, match="Unknown option 'onDisk' for tensor location weight"):
        validate_options({"location_weight": {"onDisk": 1}})


def test_all_setters_together_then_the_dictionary_is_valid():
    options = Options().outputMode(OutputMode.EveryN, 2).modelName("m").randomSeed(1)
    options.useIpuModel(True).useIpuId(2).useOfflineIpuTarget().enableProfiling()
    options.enableExecutableCaching("c").updatableNamedBuffers(["b"]).anchorTensor("a", "b")
    options.enableSyntheticData(True).enableStableNorm(True)
    options.Training.setAutomaticLossScaling(True).setConvolutionDithering(True)
    options.TensorLocations.numIOTiles(32)
    validate_options(options.toDict())


def test_check_is_frozen_then_only_the_flag_may_change():
    popart = Options()._Popart
    popart.checkIsFrozen("options")
    popart._freeze()
    popart.checkIsFrozen("_is_frozen")
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        popart.checkIsFrozen()
