"""Modules that programs import beside PopTorch, as far as programs use them (usage census)."""

import json
from enum import IntEnum

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu.companions import gcipuinfo, libpvti, popart, popdist
from poptorch_emu.companions.horovod import torch as hvd
from poptorch_emu.companions.popdist import poptorch as popdist_poptorch
from poptorch_emu.machine.system import System

popart_feature = pytest.mark.feature("popart", fidelity="accepted")
popdist_feature = pytest.mark.feature("popdist", fidelity="exact")
libpvti_feature = pytest.mark.feature("libpvti", fidelity="accepted")


@popart_feature
@pytest.mark.parametrize(
    ("enumeration", "members"),
    [
        (
            "AccumulateOuterFragmentSchedule",
            "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized",
        ),
        ("RecomputationType", "None Standard NormOnly Pipeline RecomputeAll"),
        ("SyntheticDataMode", "Off Zeros RandomNormal RandomUniform"),
        ("VirtualGraphMode", "Off Manual Auto ExecutionPhases"),
    ],
)
def test_enumeration_then_has_the_documented_values(enumeration, members):
    """Section 8.6 of the API reference lists these."""
    found = getattr(popart, enumeration)
    assert issubclass(found, IntEnum)
    assert [(member.name, member.value) for member in found] == [
        (name, value) for value, name in enumerate(members.split())
    ]


@popart_feature
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("accumulateOuterFragmentSettings.schedule", "AccumulateOuterFragmentSchedule.Serial"),
        ("subgraphCopyingStrategy", "SubgraphCopyingStrategy.JustInTime"),
        ("autoRecomputation", "RecomputationType.Pipeline"),
        ("virtualGraphMode", "VirtualGraphMode.Auto"),
        ("syntheticDataMode", "SyntheticDataMode.RandomNormal"),
        ("batchSerializationSettings.batchSchedule", "BatchSerializationBatchSchedule.Isomorphic"),
    ],
)
def test_enumeration_then_backend_options_take_it(key, value):
    enumeration, member = value.split(".")
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options._Popart.set(key, getattr(popart, enumeration)[member])
    poptorch.poptorch_core._validateOptions(options.toDict())


@popart_feature
def test_names_of_popart_that_programs_touch_then_work(caplog):
    assert popart.versionString().startswith("3.4.0+")
    assert popart.reservedGradientPrefix() == "Gradient___"
    assert popart.ReductionType.Mean == poptorch.ReductionType.Mean
    assert popart.CommGroup(popart.CommGroupType.Orthogonal, 2).replicaGroupSize == 2
    anchor = popart.AnchorReturnType("EveryN", 4)
    assert (anchor.id(), anchor.rp()) == (popart.AnchorReturnTypeId.EveryN, 4)
    log = popart.getLogger("devicex")
    log.setLevel("ERR")
    log.error("seen")
    assert caplog.messages == ["seen"]
    with pytest.raises(ValueError, match="^Level must be one of "):
        log.setLevel("LOUD")


@popart_feature
def test_popart_exception_then_catches_our_errors():
    with pytest.raises(popart.popart_exception):
        poptorch.poptorch_core._throwTestError(poptorch.poptorch_core.TestErrorType.Popart)
    assert issubclass(popart.OutOfMemoryException, popart.exception)


@pytest.mark.feature("popart graphs and sessions", fidelity="refused")
@pytest.mark.parametrize("name", ["Builder", "TrainingSession", "DeviceManager"])
def test_popart_when_asked_for_a_graph_then_says_what_to_do(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'.*torch.nn.Module"):
        getattr(popart, name)


@popdist_feature
def test_popdist_then_there_is_one_process_with_one_replica():
    assert popdist.isPopdistEnvSet() is False
    assert (popdist.getInstanceIndex(), popdist.getNumInstances()) == (0, 1)
    assert (popdist.getNumLocalReplicas(), popdist.getNumTotalReplicas()) == (1, 1)
    assert popdist.getNumIpusPerReplica() == 1


@popdist_feature
def test_popdist_init_then_backend_is_initialized(monkeypatch):
    monkeypatch.setattr(popdist, "_is_initialized", False)
    assert not popdist.isBackendInitialized()
    popdist.init()
    popdist.synchronize()
    assert popdist.isBackendInitialized()


@popdist_feature
@pytest.mark.parametrize(("instances", "result"), [({0}, 5), ([0, 1], 5), ({1}, None)])
def test_execute_on_instances_then_runs_only_where_asked(instances, result):
    assert popdist.execute_on_instances(instances, lambda a, b: a + b, 2, b=3) == result


popdist_options_feature = pytest.mark.feature("popdist.poptorch.Options", fidelity="exact")


@popdist_options_feature
@pytest.mark.parametrize(
    "call",
    [
        lambda options: options.useIpuId(0),
        lambda options: options.replicationFactor(1),
        lambda options: options.Distributed.disable(),
        lambda options: options.Distributed.setEnvVarNames("a", "b"),
        lambda options: options.Distributed.configureProcessId(0, 1),
    ],
    ids=[
        "useIpuId",
        "replicationFactor",
        "Distributed.disable",
        "Distributed.setEnvVarNames",
        "Distributed.configureProcessId",
    ],
)
def test_popdist_options_when_the_launcher_decides_then_refuse(call, request):
    name = request.node.callspec.id
    with pytest.raises(RuntimeError, match=f"Cannot call `{name}` with popdist.poptorch.Options"):
        call(popdist_poptorch.Options())


@popdist_options_feature
def test_popdist_options_when_ipus_per_replica_is_not_positive_then_refuse():
    popdist_poptorch.Options(ipus_per_replica=1)
    with pytest.raises(ValueError, match="1 or more, but it is 0"):
        popdist_poptorch.Options(ipus_per_replica=0)


@popdist_options_feature
def test_popdist_options_then_train_like_poptorchs():
    def losses(options):
        torch.manual_seed(3)
        model = Loss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options.deviceIterations(2).outputMode(poptorch.OutputMode.All)
        return poptorch.trainingModel(model, options, optimizer)(torch.ones(4, 3))

    ours = losses(popdist_poptorch.Options(ipus_per_replica=1))
    torch.testing.assert_close(ours, losses(poptorch.Options()), rtol=0, atol=0)


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x):
        return poptorch.identity_loss(self.layer(x), "mean")


@pytest.mark.feature("gcipuinfo", fidelity="modelled")
@pytest.mark.parametrize(
    ("num_ipus", "sizes"), [(0, []), (1, [1]), (3, [1, 1, 1, 2]), (4, [1, 1, 1, 1, 2, 2, 4])]
)
def test_inventory_then_lists_each_ipu_and_each_aligned_group(num_ipus, sizes, monkeypatch):
    monkeypatch.setattr(gcipuinfo, "current_system", lambda: System("test", num_ipus, 2))
    inventory = gcipuinfo.gcipuinfo()
    inventory.setUpdateMode(True)
    devices = inventory.getDevices()
    assert [int(device["number of IPUs"]) for device in devices] == sizes
    assert [device["id"] for device in devices] == [str(index) for index in range(len(sizes))]
    assert all(int(d["first IPU"]) + int(d["number of IPUs"]) <= num_ipus for d in devices)
    assert json.loads(inventory.getDevicesAsJSON()) == devices


@pytest.mark.feature("gcipuinfo", fidelity="modelled")
@pytest.mark.parametrize(
    ("system", "architecture", "tiles"),
    [("mk1-c2", "ipu1", 1216), ("mk2-pod4", "ipu2", 1472), ("bow-pod4", "ipu21", 1472)],
)
def test_inventory_when_the_system_differs_then_so_do_its_ipus(
    system, architecture, tiles, monkeypatch
):
    monkeypatch.setenv("POPTORCH_EMU_SYSTEM", system)
    first = gcipuinfo.gcipuinfo().getDevices()[0]
    assert (first["ipu architecture"], first["tiles"]) == (architecture, str(tiles))


@pytest.mark.feature("gcipuinfo", fidelity="modelled")
def test_inventory_when_asked_for_an_attribute_then_gives_it_for_each_device(monkeypatch):
    monkeypatch.setattr(gcipuinfo, "current_system", lambda: System("test", 2, 2))
    inventory = gcipuinfo.gcipuinfo()
    assert inventory.getNamedAttributeForAll("tiles") == ["1472", "1472", "2944"]
    assert inventory.getNamedAttributeForAll("average board temp") == ["N/A"] * 3


def use_everything() -> int:
    channel = libpvti.createTraceChannel("app")
    libpvti.Tracepoint.begin(channel, "part")
    libpvti.Tracepoint.end(channel, "part")
    libpvti.Graph("memory", "MiB").addSeries("host").add(2.5)
    libpvti.HeatmapDouble("gradients", [0.0, 1.0], "").add([0.5, 0.7])

    @libpvti.instrument_fn(channel)
    def double(x):
        return 2 * x

    return libpvti.instrument_fn(channel, double)(4)


@libpvti_feature
def test_pvti_when_not_enabled_then_does_nothing(caplog, monkeypatch):
    monkeypatch.delenv("PVTI_OPTIONS", raising=False)
    caplog.set_level("DEBUG", logger="poptorch::python")
    assert use_everything() == 8
    assert caplog.messages == []


@libpvti_feature
def test_pvti_when_enabled_then_logs(caplog, monkeypatch):
    monkeypatch.setenv("PVTI_OPTIONS", '{"enable": "true", "directory": "reports"}')
    caplog.set_level("DEBUG", logger="poptorch::python")
    assert libpvti.checkTracingEnabled()
    assert use_everything() == 8
    assert caplog.messages[:4] == [
        "app: part begin",
        "app: part end",
        "graph: memory: host [MiB] 2.5",
        "heatmap: gradients 2 values",
    ]
    assert [line.split(" took ")[0] for line in caplog.messages[4:]] == ["app: double"] * 2


@libpvti_feature
def test_tracepoint_when_the_block_fails_then_the_error_passes():
    with pytest.raises(KeyError), libpvti.Tracepoint(libpvti.createTraceChannel("app"), "part"):
        raise KeyError("x")


@pytest.mark.feature("horovod.torch", fidelity="accepted")
def test_horovod_then_there_is_one_process_whose_values_count():
    hvd.init()
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.local_rank(), hvd.size(), hvd.local_size()) == (0, 0, 1, 1)
    metric = torch.tensor([2.0, 3.0])
    for result in (
        hvd.allreduce(metric, op=hvd.Sum),
        hvd.allreduce(metric, average=True),
        hvd.allgather(metric, name="metric"),
        hvd.broadcast(metric, root_rank=0),
        hvd.grouped_allreduce([metric], op=hvd.Average)[0],
    ):
        assert result is not metric
        torch.testing.assert_close(result, metric, rtol=0, atol=0)
    hvd.shutdown()
    assert not hvd.is_initialized()


@pytest.mark.feature("horovod.torch", fidelity="accepted")
@pytest.mark.parametrize("broadcast", [hvd.broadcast, hvd.broadcast_parameters])
def test_horovod_when_the_root_is_another_process_then_refuses(broadcast):
    with pytest.raises(ValueError, match="root_rank is 1, but there is one process"):
        broadcast(torch.ones(2), root_rank=1)
