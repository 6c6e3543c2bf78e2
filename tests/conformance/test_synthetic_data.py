"""`enableSyntheticData` (api.md 7.5, 8.6): the device generates its inputs."""

import pytest
import torch

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Options.enableSyntheticData", fidelity="exact")


class Copies(torch.nn.Module):
    def forward(self, x, labels):
        return x + 0, labels + 0


def run(configure, x, labels):
    options = poptorch.Options().deviceIterations(4).showCompilationProgressBar(False)
    configure(options)
    model = poptorch.inferenceModel(Copies(), options)
    first, second = model(x, labels), model(x * 2, labels)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    return first


@pytest.fixture
def batch():
    return torch.full((8, 5000), 7.0), torch.full((8,), 7)


def test_synthetic_data_when_enabled_then_inputs_are_normal_and_labels_zero(batch):
    x, labels = run(lambda options: options.enableSyntheticData(True), *batch)
    # 40,000 draws: the standard errors of mean and deviation are 0.005 and 0.0035.
    assert abs(x.mean()) < 0.025
    assert abs(x.std() - 1) < 0.018
    assert not labels.any()


def test_synthetic_data_when_zeros_then_all_is_zero(batch):
    x, labels = run(lambda options: options._Popart.set("syntheticDataMode", 1), *batch)
    assert not x.any()
    assert not labels.any()


def test_synthetic_data_when_uniform_then_in_unit_interval(batch):
    x, _ = run(lambda options: options._Popart.set("syntheticDataMode", 3), *batch)
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 0.0075


def test_synthetic_data_when_disabled_again_then_inputs_are_the_hosts(batch):
    options = poptorch.Options().enableSyntheticData(True).enableSyntheticData(False)
    model = poptorch.inferenceModel(Copies(), options.showCompilationProgressBar(False))
    torch.testing.assert_close(model(*batch)[0], batch[0], rtol=0, atol=0)


def test_synthetic_data_when_an_input_is_changed_in_place_then_the_hosts_is_left_alone():
    class Doubles(torch.nn.Module):
        def forward(self, x):
            x.mul_(2)
            return x.sum()

    options = poptorch.Options().enableSyntheticData(True).showCompilationProgressBar(False)
    x = torch.ones(4)
    poptorch.inferenceModel(Doubles(), options)(x)
    assert x.tolist() == [1.0] * 4


def test_counters_when_data_is_synthetic_then_show_no_events():
    opts = poptorch.Options()
    opts.enableSyntheticData(True)
    model = poptorch.inferenceModel(torch.nn.ReLU(), opts)
    model(torch.ones(2, 2))
    keys = ("input", "input_complete", "output", "output_complete")
    assert model.getPerfCounters() == {key: [[]] for key in keys}
    assert model.getLatency() == (0.0, 0.0, 0.0)
    model.detachFromDevice()
    assert model.getPerfCounters() == {key: [[]] for key in keys}
