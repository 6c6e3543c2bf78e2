"""The values of the public enumerations, which files and integrations depend on."""

import json
import pickle
from enum import Enum, EnumMeta, IntEnum

import pytest

from poptorch_emu import enums

pytestmark = pytest.mark.feature("Enumerations", fidelity="exact")

# Name, then members in the order of their values, from 0 upwards.
DENSE = {
    "MeanReductionStrategy": "Running Post PostAndLoss",
    "DataLoaderMode": "Sync Async AsyncRebatched",
    "SharingStrategy": "SharedMemory FileSystem Fork ForkServer",
    "OutputMode": "Final EveryN All Sum Default",
    "ConnectionType": "Always OnDemand Never",
    "HalfFloatCastingBehavior": "FloatDowncastToHalf HalfUpcastToFloat Default",
    "ReductionType": "Sum Mean NoReduction",
    "SyncPattern": "Full SinglePipeline ReplicaAndLadder",
    "Liveness": "AlwaysLive OffChipAfterFwd OffChipAfterFwdNoOverlap OffChipAfterEachPhase",
    "AutoStage": "SameAsIpu AutoIncrement",
    "MultiConvPlanType": "Parallel Serial",
    "CommGroupType": "All Consecutive Orthogonal NoGrouping",
}
PLAIN = {
    "MatMulSerializationMode": {
        "InputChannels": "input_channels",
        "ReducingDim": "reducing_dim",
        "OutputChannels": "output_channels",
        "Disabled": "none",
    },
    "OverlapMode": {
        "NoOverlap": "no_overlap",
        "OverlapAccumulationLoop": "overlap_accumulation_loop",
        "OverlapDeviceIterationLoop": "overlap_device_iteration_loop",
    },
}


def members(name):
    return {key: member.value for key, member in getattr(enums, name).__members__.items()}


@pytest.mark.parametrize("name", DENSE)
def test_int_enum_then_has_the_documented_values(name):
    assert issubclass(getattr(enums, name), IntEnum)
    assert members(name) == {member: value for value, member in enumerate(DENSE[name].split())}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_enum_then_has_the_documented_strings(name):
    assert issubclass(getattr(enums, name), Enum)
    assert not issubclass(getattr(enums, name), IntEnum)
    assert members(name) == PLAIN[name]


def test_variable_retrieval_mode_then_has_no_one():
    assert members("VariableRetrievalMode") == {"OnePerGroup": 0, "AllReplicas": 2}


def test_module_then_defines_no_other_enum():
    defined = {
        name
        for name, value in vars(enums).items()
        if isinstance(value, EnumMeta) and value.__module__ == enums.__name__
    }
    assert defined == {*DENSE, *PLAIN, "VariableRetrievalMode", "NamedNumber"}


@pytest.mark.parametrize("name", [*DENSE, *PLAIN, "VariableRetrievalMode"])
def test_member_in_a_text_then_shown_by_its_name(name):
    for key, member in getattr(enums, name).__members__.items():
        assert f"{member}" == str(member) == f"{name}.{key}"


def test_member_in_a_text_as_a_number_then_is_its_number():
    member = enums.OutputMode.All
    assert f"{member:02d}" == "02"
    assert json.dumps([member]) == "[2]"
    assert pickle.loads(pickle.dumps(member)) is member
