"""Tests of the states that each rule keeps, and of their types."""

import pytest
import torch
from support import update_reference as reference
from support.update_runner import make_config, run_updates

from poptorch_emu.update.formulas.optimizer_config import HYPERS
from poptorch_emu.update.formulas.optimizer_config import OptimizerKind as Kind
from poptorch_emu.update.formulas.rules import StateSpec, is_elementwise, state_names

_SINGLE, _HALF = torch.float32, torch.float16


def _config(kind, is_constant=True, momentum=0.5, **settings):
    hypers = {**dict.fromkeys(HYPERS[kind], 0.5), "nesterov": 0.0}
    if "momentum" in HYPERS[kind]:
        hypers["momentum"] = momentum
    return make_config(kind, {name: hypers[name] for name in HYPERS[kind]}, is_constant, **settings)


def _moments(first, second):
    return (
        StateSpec("Accl1", False, first, 0.0),
        StateSpec("Accl2", False, second, 0.0),
        StateSpec("Step", True, _SINGLE, 0.0),
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (_config(Kind.SGD2, momentum=0.0), ()),
        (_config(Kind.SGD1, momentum=0.0), ()),
        (
            _config(Kind.SGD2, momentum=0.0, is_constant=False),
            (StateSpec("Accl1", False, _SINGLE, 0.0),),
        ),
        (_config(Kind.SGD2, velocity_type=_HALF), (StateSpec("Accl1", False, _HALF, 0.0),)),
        (_config(Kind.SGD1, velocity_type=_HALF), (StateSpec("Accl", False, _HALF, 0.0),)),
        (_config(Kind.ADAM), _moments(_SINGLE, _SINGLE)),
        (_config(Kind.ADAMW, first_order_type=_HALF), _moments(_HALF, _SINGLE)),
        (_config(Kind.LAMB, second_order_type=_HALF), _moments(_SINGLE, _HALF)),
        (_config(Kind.RMSPROP, momentum=0.0), (StateSpec("Accl1", False, _SINGLE, 0.0),)),
        (
            _config(
                Kind.RMSPROP_CENTERED,
                first_order_type=_HALF,
                second_order_type=_HALF,
                uses_tf_variant=True,
            ),
            (
                StateSpec("Accl1", False, _HALF, 1.0),
                StateSpec("Accl2", False, _HALF, 0.0),
                StateSpec("Accl3", False, _SINGLE, 0.0),
            ),
        ),
    ],
    ids=[
        "sgd_without_momentum",
        "combined_sgd_without_momentum",
        "sgd_with_variable_momentum",
        "sgd_half_velocity",
        "combined_sgd_half_velocity",
        "adam",
        "adamw_half_first",
        "lamb_half_second",
        "rmsprop",
        "rmsprop_everything",
    ],
)
def test_state_names_when_asked_then_gives_names_types_and_initial_values(config, expected):
    assert state_names(config, config.groups[0]) == expected


@pytest.mark.parametrize("kind", Kind)
def test_is_elementwise_when_lamb_then_false(kind):
    assert is_elementwise(kind) is (kind not in (Kind.LAMB, Kind.LAMB_NO_BIAS))


@pytest.mark.parametrize(
    ("first", "second"), [(_HALF, _SINGLE), (_SINGLE, _HALF)], ids=["half_first", "half_second"]
)
def test_adam_when_a_state_is_half_then_it_is_rounded_each_step(first, second):
    settings = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "weight_decay": 0.0}
    config = make_config(Kind.ADAM, settings, first_order_type=first, second_order_type=second)
    gradients = [torch.randn(1) for _ in range(20)]

    weight, state = run_updates(config, torch.tensor([1.0]), gradients)

    assert (state["Accl1"].dtype, state["Accl2"].dtype) == (first, second)
    rounding = {_HALF: reference.half, _SINGLE: reference.exact}
    values = [g.item() for g in gradients]
    expected = reference.adam(
        1.0, values, is_decoupled=False, first=rounding[first], second=rounding[second], **settings
    )
    unrounded = reference.adam(1.0, values, is_decoupled=False, **settings)
    # The rounding of the state is seen: it moves the weight by more than the tolerance.
    assert abs(expected - unrounded) > 1e-6
    torch.testing.assert_close(weight, torch.tensor([expected]), rtol=5e-7, atol=5e-7)


def test_sgd_when_weight_and_gradient_are_half_then_rounds_once():
    settings = {"lr": 0.3, "momentum": 0.9, "dampening": 0, "weight_decay": 0.1, "nesterov": 0}
    weight = torch.randn(1000).half()
    gradient = torch.randn(1000).half()
    result, state = run_updates(make_config(Kind.SGD2, settings), weight, [gradient])
    assert result.dtype == _HALF
    assert state["Accl1"].dtype == _SINGLE
    velocity = gradient.double() + 0.1 * weight.double()
    expected = (weight.double() - 0.3 * velocity).half()
    # Computing in float32 instead of float64 may cross a rounding boundary of float16 now and then.
    assert (result != expected).sum() <= 2
    torch.testing.assert_close(result, expected)


def test_adam_when_counting_steps_then_step_is_a_scalar_float32():
    settings = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "weight_decay": 0.0}
    _, state = run_updates(make_config(Kind.ADAM, settings), torch.ones(2), [torch.ones(2)] * 7)
    assert state["Step"].shape == ()
    assert state["Step"].dtype == _SINGLE
    assert state["Step"].item() == 7
