"""Settings that options and optimisers share."""

import pytest

import poptorch_emu as poptorch
from poptorch_emu.options.optimizer_settings import (
    has_running_mean,
    optimizer_settings,
    with_running_mean,
)

pytestmark = pytest.mark.feature("setOptimizer and optimiser state", fidelity="exact")


@pytest.mark.parametrize("is_frozen", [False, True], ids=["open", "frozen"])
def test_with_running_mean_then_other_options_have_it_and_are_frozen(is_frozen):
    options = poptorch.Options().deviceIterations(3)
    if is_frozen:
        options._freeze()
    changed = with_running_mean(options)
    assert has_running_mean(changed) and not has_running_mean(options)
    assert changed.device_iterations == 3
    with pytest.raises(AttributeError, match="frozen"):
        changed.Training.gradientAccumulation(2)
    assert with_running_mean(changed) is changed


def test_settings_then_are_those_of_the_options():
    options = poptorch.Options().relaxOptimizerAttributesChecks()
    options.Training.setAutomaticLossScaling(True)
    settings = optimizer_settings(options)
    assert settings.is_relaxed
    assert settings.backend["automaticLossScalingSettings.enabled"] is True
    assert not optimizer_settings(poptorch.Options()).is_relaxed
