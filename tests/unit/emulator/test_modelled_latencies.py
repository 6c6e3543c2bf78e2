"""Latencies of a real system in the form of measured ones, against closed formulas."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

pytestmark = pytest.mark.feature("emulator.set_latencies", fidelity="modelled")

WIDTH, ROWS = 64, 8
KEYS = ["input", "input_complete", "output", "output_complete"]


class Stages(nn.Module):
    """A layer for each IPU; the last IPU reads the labels."""

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num_ipus))

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"layer{index}", ipu_id=index):
                x = layer(x)
                if index + 1 == len(self.layers):
                    return x, poptorch.identity_loss(((x - y) ** 2).mean(), "none")
        raise AssertionError("the last layer returns")


def called(num_ipus, choice, *, iterations=1, accumulation=1, replicas=1, is_training=False, mode):
    options = poptorch.Options().showCompilationProgressBar(False).deviceIterations(iterations)
    options.replicationFactor(replicas).outputMode(*mode)
    options.Training.gradientAccumulation(accumulation)
    if choice is not None:
        emulator.set_latencies(options, choice)
    wrap = poptorch.trainingModel if is_training else poptorch.inferenceModel
    model = wrap(Stages(num_ipus), options)
    batch = torch.randn(2, ROWS * iterations * replicas * accumulation, WIDTH)
    model(*batch)
    return model


MODES = [(poptorch.OutputMode.All, None), (poptorch.OutputMode.Final, None),
         (poptorch.OutputMode.Sum, None), (poptorch.OutputMode.EveryN, 2)]  # fmt: skip


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("is_training", [True, False])
def test_latencies_when_modelled_then_have_the_form_of_measured_ones(mode, is_training) -> None:
    settings = {"iterations": 4, "replicas": 2, "is_training": is_training, "mode": mode}
    # A pipeline refuses to return every second result.
    num_ipus = 1 if mode[1] else 2
    settings["accumulation"] = 4 if is_training else 1
    measured, modelled = (called(num_ipus, choice, **settings) for choice in (None, "modelled"))
    expected, found = measured.getPerfCounters(), modelled.getPerfCounters()
    for key in KEYS:
        assert [len(t) for t in found[key]] == [len(t) for t in expected[key]]
        assert all(times == sorted(times) for times in found[key])
    for shortest, longest, mean in (modelled.getLatency(), modelled.getComputeLatency()):
        assert 0 < shortest <= mean <= longest
    assert modelled.getLatency()[0] >= modelled.getComputeLatency()[0]
    assert modelled.getPerfCounters() == found
    span = found["output_complete"][0][-1] - found["input"][0][0]
    plan = emulator.estimate(modelled)
    assert span <= plan.step_seconds  # The last results may cross after the last window.
    assert span > 0.5 * (plan.num_windows - 0.5) * plan.window_seconds


def test_latency_when_there_is_one_ipu_then_is_the_time_of_its_action() -> None:
    model = called(1, "modelled", iterations=6, mode=MODES[0])
    plan = emulator.estimate(model)
    seconds = plan.stages[0].cycles / plan.clock_hz
    assert model.getLatency() == pytest.approx((seconds,) * 3, abs=3e-9)
    begins = model.getPerfCounters()["input"][0]
    assert begins == pytest.approx([number * seconds for number in range(6)], abs=3e-9)


@pytest.mark.parametrize("iterations", [5, 300])
def test_latency_when_there_is_a_pipeline_then_is_that_of_its_stages(iterations) -> None:
    # A micro-batch waits a cycle of the pipeline for each stage but the last, which only computes.
    model = called(4, "modelled", iterations=iterations, mode=MODES[0])
    plan = emulator.estimate(model)
    cycle = plan.grid.slot_cycles / plan.clock_hz
    last = plan.stages[-1].cycles / plan.clock_hz
    times = model.getPerfCounters()
    for number in range(iterations):
        assert times["input"][0][number] == pytest.approx(number * cycle, abs=3e-9)
        # The labels cross to the device when the last stage begins.
        assert times["input"][1][number] == pytest.approx((number + 3) * cycle, abs=3e-9)
        end = (number + 3) * cycle + last
        assert times["output_complete"][0][number] == pytest.approx(end, abs=3e-9)
    assert model.getLatency() == pytest.approx((3 * cycle + last,) * 3, abs=6e-9)


def test_latencies_when_the_device_is_gone_then_stay_until_the_model_is_destroyed() -> None:
    model = called(1, "modelled", mode=MODES[0])
    found = model.getPerfCounters()
    model.detachFromDevice()
    assert model.getPerfCounters() == found
    model.destroy()
    assert model.getPerfCounters() == {key: [[]] for key in KEYS}


def test_set_latencies_when_the_choice_is_unknown_or_late_then_raises() -> None:
    options = poptorch.Options()
    with pytest.raises(poptorch.Error, match="Unknown latencies: 'guessed'"):
        emulator.set_latencies(options, "guessed")
    poptorch.inferenceModel(nn.Linear(1, 1), options)
    with pytest.raises(AttributeError):
        emulator.set_latencies(options, "modelled")
