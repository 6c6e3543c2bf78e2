"""Performance counters and latencies (api.md §16.7): the lengths of the lists, and their order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

KEYS = ["input", "input_complete", "output", "output_complete"]
METHODS = ["getLatency", "getHostIpuLatency", "getComputeLatency", "getIpuHostLatency"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor, unused: torch.Tensor):
        z = self.linear(x)
        return z, nn.functional.mse_loss(z, y)


def executor(is_training, iterations, accumulation, replicas, mode, period=None):
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.deviceIterations(iterations).replicationFactor(replicas).outputMode(mode, period)
    opts.Training.gradientAccumulation(accumulation)
    wrap = poptorch.trainingModel if is_training else poptorch.inferenceModel
    return wrap(Model(), opts)


def batch(rows: int):
    return [torch.randn(rows, 4) for _ in range(3)]


# (device iterations, accumulation, replicas, mode, period) and the number of times of each output.
COUNTS = [
    (1, 1, 1, "All", None, 1),
    (4, 1, 1, "All", None, 4),
    (4, 3, 2, "All", None, 4 * 3 * 2),
    (4, 3, 2, "Final", None, 2),
    (4, 3, 2, "Sum", None, 2),
    (4, 3, 2, "EveryN", 2, 4 // 2 * 3 * 2),
    (6, 1, 1, "EveryN", 3, 2),
]


@pytest.mark.feature("PoplarExecutor.getPerfCounters", fidelity="exact")
@pytest.mark.parametrize(("iterations", "ga", "replicas", "mode", "period", "count"), COUNTS)
def test_counters_then_one_time_for_each_piece(
    iterations, ga, replicas, mode, period, count
) -> None:
    model = executor(True, iterations, ga, replicas, poptorch.OutputMode[mode], period)
    rows = iterations * ga * replicas
    model(*batch(rows))
    times = model.getPerfCounters()
    assert list(times) == KEYS
    for key, num_tensors, length in (("input", 3, rows), ("output", 2, count)):
        for name in (key, f"{key}_complete"):
            assert [len(tensor) for tensor in times[name]] == [length] * num_tensors
        for begin, end in zip(times[key], times[f"{key}_complete"], strict=True):
            assert begin == sorted(begin) and end == sorted(end)
            assert all(early <= late for early, late in zip(begin, end, strict=True))
    # Nothing leaves the device before an input has arrived.
    assert times["output"][0][0] >= times["input_complete"][0][0]


@pytest.mark.feature("PoplarExecutor.getLatency", fidelity="exact")
@pytest.mark.parametrize(("iterations", "ga", "replicas", "mode", "period", "count"), COUNTS)
def test_latencies_then_ordered_and_parts_within_the_whole(
    iterations, ga, replicas, mode, period, count
) -> None:
    model = executor(True, iterations, ga, replicas, poptorch.OutputMode[mode], period)
    model(*batch(iterations * ga * replicas))
    latencies = {method: getattr(model, method)() for method in METHODS}
    for shortest, longest, mean in latencies.values():
        assert 0 <= shortest <= mean <= longest < 60
    assert latencies["getLatency"][1] > 0
    for method in METHODS[1:]:
        assert latencies[method][1] <= latencies["getLatency"][1]


@pytest.mark.feature("PoplarExecutor.getPerfCounters", fidelity="exact")
def test_counters_without_a_run_then_empty_and_latencies_zero() -> None:
    model = executor(False, 1, 1, 1, poptorch.OutputMode.All)
    for moment in (lambda: None, lambda: model.compile(*batch(1))):
        moment()
        assert model.getPerfCounters() == {key: [[]] for key in KEYS}
        assert all(getattr(model, method)() == (0.0, 0.0, 0.0) for method in METHODS)


@pytest.mark.feature("PoplarExecutor.getPerfCounters", fidelity="exact")
def test_counters_after_each_call_then_are_of_the_last_and_survive_detaching() -> None:
    model = executor(False, 2, 1, 1, poptorch.OutputMode.All)
    model(*batch(2))
    first = model.getPerfCounters()
    model(*batch(2))
    second = model.getPerfCounters()
    assert second["input"][0][0] > first["output_complete"][0][-1]
    model.detachFromDevice()
    assert model.getPerfCounters() == second
    model.destroy()
    assert model.getPerfCounters() == {key: [[]] for key in KEYS}


@pytest.mark.feature("PoplarExecutor.getPerfCounters", fidelity="exact")
def test_counters_when_data_are_synthetic_then_one_empty_list_for_each_tensor() -> None:
    opts = poptorch.Options().showCompilationProgressBar(False).enableSyntheticData(True)
    model = poptorch.inferenceModel(Model(), opts)
    assert model.getPerfCounters() == {key: [[]] for key in KEYS}
    model(*batch(2))
    times = model.getPerfCounters()
    assert [times[key] for key in KEYS] == [[[]] * 3, [[]] * 3, [[]] * 2, [[]] * 2]
    for method in METHODS:
        assert getattr(model, method)() == (0.0, 0.0, 0.0)
