"""Estimates of a model's time, from shapes, from a compiled model, or with other settings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

pytestmark = [
    pytest.mark.feature("emulator.estimate", fidelity="modelled"),
    pytest.mark.feature("emulator.timeline", fidelity="modelled"),
    pytest.mark.feature("emulator.what_if", fidelity="modelled"),
]


class Stages(nn.Module):
    """Blocks of two layers over the IPUs."""

    def __init__(self, ipus: tuple[int, ...] = (0, 1), width: int = 64) -> None:
        super().__init__()
        self.ipus = ipus
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in ipus
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        for index, (ipu, block) in enumerate(zip(self.ipus, self.blocks, strict=True)):
            with poptorch.Block(f"block{index}", ipu_id=ipu):
                x = block(x)
                if index + 1 == len(self.ipus):
                    return x, poptorch.identity_loss(((x - y) ** 2).mean(), "none")
        raise AssertionError("the last block returns")


ROWS = 4


def trainer(
    ipus: tuple[int, ...] = (0, 1),
    accumulation: int = 8,
    replicas: int = 1,
    device: str = "cpu",
    strategy: type = poptorch.PipelinedExecution,
    recomputation: int | None = None,
):
    options = poptorch.Options().showCompilationProgressBar(False).replicationFactor(replicas)
    options.setExecutionStrategy(strategy(poptorch.AutoStage.AutoIncrement))
    options.Training.gradientAccumulation(accumulation)
    options.randomSeed(3)
    if recomputation is not None:
        options._Popart.set("autoRecomputation", recomputation)
    torch.manual_seed(1)
    with torch.device(device):
        model = Stages(ipus)
        batch = torch.ones(2, ROWS * accumulation * replicas, 64)
    return poptorch.trainingModel(
        model, options, poptorch.optim.AdamW(model.parameters(), lr=0.1)
    ), tuple(batch)


def plain(plan) -> tuple:
    return plan.stages, plan.updates, plan.ipus, plan.step_seconds, plan.all_operations


def test_estimate_when_the_model_is_compiled_and_called_then_is_that_of_meta_tensors() -> None:
    before = emulator.estimate(*_on_meta())
    model, batch = trainer()
    model(*batch)
    after = emulator.estimate(model)
    assert plain(after) == plain(before)
    assert after.cycles == round(after.step_seconds * after.clock_hz)
    assert after.samples_per_step == ROWS * 8
    assert after.throughput == pytest.approx(ROWS * 8 / after.step_seconds)


def _on_meta():
    model, batch = trainer(device="meta")
    return model, *batch


def test_training_when_estimated_in_between_then_is_the_same_to_the_bit() -> None:
    results = []
    for estimates in (False, True):
        model, batch = trainer()
        if estimates:
            emulator.estimate(model, *batch)
        first = model(*batch)
        if estimates:
            emulator.timeline(model)
        results.append((first, model(*batch), model.model.state_dict()))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_estimate_when_parameters_are_on_meta_then_warns_of_nothing(caplog) -> None:
    emulator.estimate(*_on_meta())
    assert not caplog.records


def test_estimate_when_shapes_are_not_known_then_says_what_to_do() -> None:
    with pytest.raises(poptorch.Error, match="not compiled.*Pass inputs"):
        emulator.estimate(trainer()[0])


def test_estimate_when_the_system_is_not_known_then_names_those_there_are() -> None:
    model, *batch = _on_meta()
    with pytest.raises(poptorch.Error, match="'bow-pod7', which is no virtual system.*bow-pod16"):
        emulator.estimate(model, *batch, system="bow-pod7")


def test_estimate_when_the_clock_is_faster_then_takes_less_time_but_no_fewer_cycles() -> None:
    model, *batch = _on_meta()
    slow, fast = (emulator.estimate(model, *batch, system=s) for s in ("mk2-pod4", "bow-pod4"))
    assert fast.step_seconds < slow.step_seconds
    assert [op.cycles for op in fast.all_operations] == [op.cycles for op in slow.all_operations]


def test_busy_and_idle_then_make_up_the_step_on_each_ipu() -> None:
    plan = emulator.estimate(*_on_meta())
    for ipu in plan.ipus:
        assert sum(ipu.seconds.values()) == pytest.approx(plan.step_seconds)
        assert min(ipu.seconds.values()) >= 0
    assert sum(plan.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("accumulation", "replicas", "strategy"),
    [(16, 1, poptorch.PipelinedExecution), (8, 4, poptorch.PipelinedExecution),
     (8, 1, poptorch.ShardedExecution)],
)  # fmt: skip
def test_operations_when_scheduled_otherwise_then_cost_the_same(
    accumulation, replicas, strategy
) -> None:
    """Recomputation is the same in both models, and its operations count."""

    def operations(*settings):
        model, batch = trainer((0, 1), *settings, recomputation=3)
        plan = emulator.estimate(model, *batch)
        return [(op.segment, op.name, op.is_recomputed, op.cycles) for op in plan.all_operations]

    usual = operations(8, 1, "meta", poptorch.PipelinedExecution)
    assert operations(accumulation, replicas, "meta", strategy) == usual


def test_recomputation_when_there_is_more_of_it_then_takes_no_less_time() -> None:
    seconds = []
    for mode in (0, 3, 4):
        model, batch = trainer((0, 1, 2, 3), device="meta", recomputation=mode)
        seconds.append(emulator.estimate(model, *batch).step_seconds)
    assert seconds == sorted(seconds) and seconds[0] < seconds[2]


def test_host_work_when_it_is_slower_then_is_what_limits() -> None:
    model, *batch = _on_meta()
    free = emulator.estimate(model, *batch)
    slow = emulator.estimate(model, *batch, io=emulator.HostWork(items_per_second=10.0))
    assert slow.throughput == pytest.approx(10.0)
    assert "host" in slow.bottleneck
    assert any("io=" in text for text in free.assumptions)
    assert not any("io=" in text for text in slow.assumptions)


def test_report_then_names_ipus_stages_operations_and_the_evidence() -> None:
    text = str(emulator.estimate(*_on_meta()))
    for part in (
        "rows a second",
        "IPU 1",
        "imbalance",
        "ramp",
        "recompute ms",
        "limited by",
        "assumed",
    ):
        assert part in text


def test_what_if_then_each_point_is_the_estimate_with_these_options() -> None:
    model, *batch = _on_meta()
    sweep = emulator.what_if(model, *batch, sweep={"accumulation": [8, 64], "replicas": [1, 2]})
    assert len(sweep.points) == 4
    for point in sweep.points:
        settings = dict(point.settings)
        other, inputs = trainer((0, 1), settings["accumulation"], settings["replicas"], "meta")
        assert point.throughput == pytest.approx(emulator.estimate(other, *inputs).throughput)
        assert point.fits == "yes"
    assert dict(sweep.best().settings) == {"accumulation": 64, "replicas": 2}
    assert "limited by" in str(sweep).splitlines()[0]


def test_what_if_when_rows_change_then_is_the_estimate_of_larger_inputs() -> None:
    model, *batch = _on_meta()
    (point,) = emulator.what_if(model, *batch, sweep={"micro_batch": [32]}).points
    larger = [torch.empty(32 * 8, 64, device="meta") for _ in batch]
    assert point.throughput == pytest.approx(emulator.estimate(model, *larger).throughput)


def test_report_when_the_host_computes_too_then_says_that_its_seconds_are_needed() -> None:
    class WithHost(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.doubled = poptorch.CPU(lambda x: x * 2, "doubled")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.doubled(x))

    report = emulator.estimate(poptorch.inferenceModel(WithHost()), torch.ones(4, 8))
    assert "host function doubled takes no time: its duration is unknown" in str(report)
    assert report.step_seconds > 0


def test_inputs_when_given_by_name_then_are_those_given_by_place() -> None:
    model, (x, y) = trainer(device="meta")
    assert plain(emulator.estimate(model, x, y=y)) == plain(emulator.estimate(model, x, y))
    assert emulator.timeline(model, x=x, y=y) == emulator.timeline(model, x, y)
    sweep = {"micro_batch": [8], "accumulation": [4, 8]}
    named = emulator.what_if(model, y=y, x=x, sweep=sweep)
    assert named.points == emulator.what_if(model, x, y, sweep=sweep).points
    split = emulator.plan_split(model, y=y, x=x, num_ipus=2)
    assert split.stages == emulator.plan_split(model, x, y, num_ipus=2).stages


def test_what_if_when_a_point_cannot_run_then_says_why() -> None:
    model, *batch = _on_meta()
    (point,) = emulator.what_if(model, *batch, sweep={"accumulation": [2]}).points
    assert point.throughput is None
    assert "gradientAccumulation must be greater" in point.limit


def test_what_if_when_the_setting_is_unknown_then_names_those_there_are() -> None:
    model, *batch = _on_meta()
    with pytest.raises(poptorch.Error, match="no setting 'colour'.*accumulation"):
        emulator.what_if(model, *batch, sweep={"colour": [1]})


class Odd(nn.Module):
    """A model that spends most of its time in an operator without a cost model."""

    def forward(self, x: torch.Tensor):
        for _ in range(8):
            x = torch.special.i0(x)
        return x + 1


def test_estimate_when_most_is_unknown_then_has_no_throughput() -> None:
    model = poptorch.inferenceModel(Odd())
    plan = emulator.estimate(model, torch.empty(4096, 1024, device="meta"))
    assert plan.throughput is None
    ((operator, share),) = plan.unknown
    assert operator.endswith("i0") and share > 0.2
    assert plan.rough


def test_host_work_when_nothing_is_prefetched_then_is_added_to_that_of_the_device() -> None:
    def planned(is_prefetched: bool, **more):
        options = poptorch.Options().showCompilationProgressBar(False).deviceIterations(5)
        options._Popart.set("enablePrefetchDatastreams", is_prefetched)
        model = poptorch.inferenceModel(nn.Linear(64, 64).to("meta"), options)
        return emulator.estimate(model, torch.empty(5 * 8, 64, device="meta"), **more)

    ahead, late = planned(True), planned(False)
    # The one input of each of the five micro-batches begins late.
    waited = 5 * 80_000 / ahead.clock_hz
    assert late.step_seconds == pytest.approx(ahead.step_seconds + waited)
    work = emulator.HostWork(seconds_per_update=0.25)
    assert planned(True, io=work).step_seconds == 0.25
    assert planned(False, io=work).step_seconds == pytest.approx(late.step_seconds + 0.25)
    assert "inputs are not prefetched" in str(late)


def phased(strategy: type, num_io_tiles: int = 0, liveness=None):
    """Returns the estimate of layers in phases whose weights are in streaming memory."""
    options = poptorch.Options().showCompilationProgressBar(False)
    ipus = (0, 1, 0, 1) if strategy is poptorch.ParallelPhasedExecution else (0,) * 4
    phases = [poptorch.Phase(poptorch.Stage(f"block{i}").ipu(ipu)) for i, ipu in enumerate(ipus)]
    execution = strategy(*phases)
    if liveness is not None:
        execution.setTensorsLiveness(liveness)
    options.setExecutionStrategy(execution)
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    if num_io_tiles:
        options.TensorLocations.numIOTiles(num_io_tiles)
        location.useIOTilesToLoad(True)
    options.TensorLocations.setWeightLocation(location)
    with torch.device("meta"):
        model, batch = Stages(ipus, width=512), torch.empty(2, 2048, 512)
    return emulator.estimate(poptorch.inferenceModel(model, options), *batch)


def test_phases_when_they_overlap_then_load_while_the_one_before_computes() -> None:
    serial = phased(poptorch.SerialPhasedExecution)
    parallel = phased(poptorch.ParallelPhasedExecution)
    loads = [stage.forward.remote_cycles for stage in serial.stages]
    assert loads == [pytest.approx(loads[0])] * 4 and loads[0] > 0
    for before, stage in zip(parallel.stages, parallel.stages[1:], strict=False):
        expected = max(0.0, loads[0] - before.forward.operation_cycles)
        assert stage.forward.remote_cycles == pytest.approx(expected)
    assert parallel.stages[0].forward.remote_cycles == pytest.approx(loads[0])
    # Serial phases overlap with tiles for I/O, unless the user wants time between the phases.
    tiles = phased(poptorch.SerialPhasedExecution, 64)
    assert sum(stage.forward.remote_cycles for stage in tiles.stages) < sum(loads)
    apart = phased(poptorch.SerialPhasedExecution, 64, poptorch.Liveness.OffChipAfterFwdNoOverlap)
    assert [s.forward.remote_cycles for s in apart.stages] == pytest.approx(loads)
