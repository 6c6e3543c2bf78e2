"""Time of a call, of the host and of streaming memory, beside that of the tiles (modelled).

Expected values are closed formulas of measured times: hardware.md 1.3 (C07) and 4.2.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.compile.timing import time_of
from poptorch_emu.emulator.estimates import captured
from poptorch_emu.emulator.loader_speed import host_work
from poptorch_emu.machine.system import system_of
from poptorch_emu.machine.time_numbers import NUMBERS
from poptorch_emu.plan.time.causes import Cause, losses

pytestmark = pytest.mark.feature("emulator.estimate", fidelity="modelled")

SYNC_SECONDS = 43e-6
SYSTEM = "bow-pod4"
WIDTH = 64


class Layers(nn.Module):
    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num_ipus))

    def forward(self, x: torch.Tensor):
        for ipu, layer in enumerate(self.layers):
            with poptorch.Block(f"layer{ipu}", ipu_id=ipu):
                x = torch.relu(layer(x))
                if ipu + 1 == len(self.layers):
                    return x if not self.training else poptorch.identity_loss(x, "mean")
        raise AssertionError("the last layer returns")


def options(**more) -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False)
    for name, value in more.items():
        getattr(opts, name)(value)
    return opts


def plans(model: poptorch.PoplarExecutor, rows: int):
    """Returns a plan, and a plan in which synchronisation with the host takes no time."""
    request, inventory = captured(model, (torch.empty(rows, WIDTH, device="meta"),), {})
    system = system_of(SYSTEM)
    without = replace(NUMBERS, host_sync_seconds=0.0)
    return [time_of(request, inventory, system, None, numbers) for numbers in (NUMBERS, without)]


@pytest.mark.parametrize("mode", ["OutputMode.All", "OutputMode.Final"])
def test_each_micro_batch_then_meets_the_host_once_for_each_direction(mode) -> None:
    opts = options(deviceIterations=5, outputMode=getattr(poptorch.OutputMode, mode[11:]))
    model = poptorch.inferenceModel(Layers(1).to("meta").eval(), opts)
    found, without = plans(model, 5 * 8)
    meetings = 5 * (2 if mode.endswith("All") else 1)
    waited = found.step_seconds - without.step_seconds
    assert waited == pytest.approx(meetings * SYNC_SECONDS)
    assert found.ipus[0].host_seconds - without.ipus[0].host_seconds == pytest.approx(waited)


def test_pipeline_then_meets_the_host_in_each_of_its_cycles() -> None:
    """All IPUs of a replica wait, also those that have no streams: 5 + 4 - 1 cycles."""
    model = poptorch.inferenceModel(Layers(4).to("meta").eval(), options(deviceIterations=5))
    found, without = plans(model, 5 * 8)
    assert found.step_seconds - without.step_seconds == pytest.approx(8 * 2 * SYNC_SECONDS)


def test_sharded_blocks_then_meet_the_host_where_their_streams_are() -> None:
    opts = options(deviceIterations=5)
    opts.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement))
    model = poptorch.inferenceModel(Layers(4).to("meta").eval(), opts)
    found, without = plans(model, 5 * 8)
    assert found.step_seconds - without.step_seconds == pytest.approx(5 * 2 * SYNC_SECONDS)


def test_data_that_the_device_makes_then_need_no_host() -> None:
    opts = options(deviceIterations=5, enableSyntheticData=True)
    found, without = plans(poptorch.inferenceModel(Layers(1).to("meta").eval(), opts), 5 * 8)
    assert found.step_seconds == without.step_seconds


def trainer(schedule: int | None = None, accumulation: int = 4):
    """Returns a trainer of two IPUs whose optimiser's state is in streaming memory."""
    opts = options()
    opts.Training.gradientAccumulation(accumulation)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    off_chip = poptorch.TensorLocationSettings().useOnChipStorage(False)
    opts.TensorLocations.setOptimizerLocation(off_chip)
    if schedule is not None:
        opts._Popart.set("accumulateOuterFragmentSettings.schedule", schedule)
    model = Layers(2).to("meta")
    return poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=0.1))


def estimated(model: poptorch.PoplarExecutor, accumulation: int = 4):
    rows = torch.empty(8 * accumulation, WIDTH, device="meta")
    return emulator.estimate(model, rows, system=SYSTEM)


def test_state_in_streaming_memory_then_comes_and_goes_weight_by_weight() -> None:
    """Each IPU loads and stores two moments of a matrix and a bias, weight by weight."""
    for update in estimated(trainer()).updates:
        seconds = update.remote_cycles / system_of(SYSTEM).chip.clock_hz
        moments = 2 * (WIDTH * WIDTH + WIDTH) * 4
        # The tolerance covers the step counters, which are single numbers.
        rate = 20e9 / 2
        assert seconds == pytest.approx(2 * (2 * 86e-6 + moments / min(rate, 5.5e9)), abs=1e-7)


def test_updates_then_follow_each_other_unless_the_backend_lets_them_overlap() -> None:
    first, second = estimated(trainer()).updates
    assert first.wait_cycles == 0
    assert second.wait_cycles == first.optimizer_cycles + first.remote_cycles > 0
    together = estimated(trainer(schedule=3))
    assert [update.wait_cycles for update in together.updates] == [0, 0]
    assert together.window_seconds < estimated(trainer()).window_seconds


def test_timeline_then_draws_updates_after_each_other() -> None:
    model = trainer()
    events = emulator.timeline(model, torch.empty(32, WIDTH, device="meta"), system=SYSTEM)
    ends = {event.ipu: event.end_seconds for event in events}
    begins = {
        ipu: min(e.begin_seconds for e in events if e.ipu == ipu and e.kind == "remote")
        for ipu in ends
    }
    assert begins[1] >= ends[0] - 1e-9


@pytest.mark.parametrize("schedule", [None, 3], ids=["in turn", "at the same time"])
def test_causes_then_take_as_much_of_a_step_as_the_timeline_draws(schedule) -> None:
    found = estimated(trainer(schedule))
    shares = {loss.cause: loss.share for loss in losses(found)}
    rows = torch.empty(32, WIDTH, device="meta")
    events = list(emulator.timeline(trainer(schedule), rows, system=SYSTEM))
    for cause, kind in ((Cause.UPDATE, "optimizer"), (Cause.STREAMING, "remote")):
        spans = {(e.begin_seconds, e.end_seconds) for e in events if e.kind == kind}
        assert len(spans) == (2 if schedule is None else 1)
        seconds = sum(end - begin for begin, end in spans)
        assert shares[cause] == pytest.approx(seconds / found.step_seconds)


class Slow:
    """A loader of batches of seven rows, which takes two milliseconds for each."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches = num_batches

    def __iter__(self):
        for _ in range(self.num_batches):
            time.sleep(0.002)
            yield torch.zeros(7, 3), torch.zeros(7)


@pytest.mark.parametrize("num_batches", [1, 8, 1_000_000])
def test_loader_then_is_run_to_see_how_fast_it_is(num_batches) -> None:
    work = host_work(Slow(num_batches), seconds=0.1)
    # A busy computer may take longer, but none takes less.
    assert 7 / 0.2 < work.items_per_second < 7 / 0.002
    assert work.is_measured


class Workers:
    """A loader of four workers, whose batches of seven rows come together each 20 milliseconds."""

    num_workers = 4

    def __iter__(self):
        time.sleep(0.02)
        for _ in range(self.num_workers):
            yield torch.zeros(7, 3)


def test_loader_when_worker_processes_hold_all_batches_then_it_runs_again_until_time_is_over() -> (
    None
):
    exact = 4 * 7 / 0.02
    assert exact / 2 < host_work(Workers(), seconds=0.1).items_per_second <= exact


def test_estimate_when_the_loader_is_slow_then_says_so() -> None:
    model = poptorch.inferenceModel(Layers(1).to("meta").eval(), options())
    report = emulator.estimate(model, torch.empty(8, WIDTH, device="meta"), io=Slow(20))
    assert report.throughput < 7 / 0.002
    assert "rows/s, as measured on this computer" in str(report)


@pytest.mark.parametrize(
    ("io", "error", "message"),
    [
        (5, TypeError, r"io is of type int; expected emulator\.HostWork"),
        ([], ValueError, "yields no batch"),
        ([{"text": "words"}] * 2, ValueError, "without a tensor that has rows"),
    ],
)
def test_io_when_it_is_no_loader_then_is_refused(io, error, message) -> None:
    with pytest.raises(error, match=message):
        host_work(io)


def test_io_when_it_is_given_then_is_taken_as_it_is() -> None:
    work = emulator.HostWork(items_per_second=5.0)
    assert host_work(work) is work and host_work(None) is None


def test_inference_then_says_that_its_start_of_programs_is_assumed() -> None:
    opts = options(enableSyntheticData=True)
    model = poptorch.inferenceModel(Layers(1).to("meta").eval(), opts)
    found, _ = plans(model, 8)
    assert found.evidence == "assumed"
    # In training, the time to start the same operation is fitted.
    for plan, evidence in ((found, "assumed"), (estimated(trainer()), "derived")):
        assert {op.evidence for op in plan.operations() if op.operator == "aten::relu"} == {
            evidence
        }
