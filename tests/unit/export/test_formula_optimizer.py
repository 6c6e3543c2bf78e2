"""The optimiser with the emulator's formulas: a PyTorch optimiser with the published results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import update_reference as reference
from support.update_runner import make_config

from poptorch_emu.export.formula_optimizer import FormulaOptimizer, config_of, plain_config
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig
from poptorch_emu.update.formulas.optimizer_config import OptimizerKind as Kind

NUM_UPDATES, SIZE = 20, 4
ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
LAMB = {**ADAM, "max_weight_norm": 65500.0}
RMSPROP = {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.05, "momentum": 0.9}
SGD = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1, "nesterov": 0.0}

CASES: dict[str, tuple[Kind, dict[str, float], Callable[..., Any], dict[str, Any]]] = {
    "LAMB": (Kind.LAMB, LAMB, reference.lamb, {"is_corrected": True}),
    "LAMB, not corrected": (Kind.LAMB_NO_BIAS, LAMB, reference.lamb, {"is_corrected": False}),
    "SGD with dampening": (Kind.SGD2, SGD, reference.sgd, {}),
    "RMSprop of TensorFlow": (
        Kind.RMSPROP,
        RMSPROP,
        reference.rmsprop,
        {"is_centered": False, "is_tensorflow": True},
    ),
}


def optimizer_of(config: OptimizerConfig, parameter: torch.Tensor) -> FormulaOptimizer:
    values = {name: hyper.value for name, hyper in config.groups[0].hypers}
    return FormulaOptimizer([{"params": [parameter], "group_index": 0, **values}], config)


def trained(optimizer: FormulaOptimizer, parameter: torch.Tensor, gradients: torch.Tensor) -> None:
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        assert torch.equal(parameter.grad, gradient)


def example(name: str) -> tuple[OptimizerConfig, torch.nn.Parameter, torch.Tensor]:
    kind, hypers, _, flags = CASES[name]
    config = make_config(kind, hypers, uses_tf_variant=flags.get("is_tensorflow", False))
    return config, torch.nn.Parameter(torch.randn(SIZE)), torch.randn(NUM_UPDATES, SIZE)


@pytest.mark.parametrize("name", CASES)
def test_step_when_20_updates_then_equals_the_published_formula(name: str) -> None:
    config, parameter, gradients = example(name)
    _, hypers, rule, flags = CASES[name]
    before = parameter.detach().clone()
    trained(optimizer_of(config, parameter), parameter, gradients)
    if rule is reference.lamb:
        expected = rule(before.tolist(), gradients.tolist(), **hypers, **flags)
    else:
        expected = [
            rule(before[i].item(), gradients[:, i].tolist(), **hypers, **flags) for i in range(SIZE)
        ]
    torch.testing.assert_close(parameter.detach(), torch.tensor(expected), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_state_dict_when_loaded_by_another_then_it_goes_on(name: str) -> None:
    config, parameter, gradients = example(name)
    other = torch.nn.Parameter(parameter.detach().clone())
    trained(optimizer_of(config, parameter), parameter, gradients)
    first = optimizer_of(config, other)
    trained(first, other, gradients[:7])
    read = config_of(json.loads(json.dumps(plain_config(config))))
    second = optimizer_of(read, other)
    second.load_state_dict(first.state_dict())
    trained(second, other, gradients[7:])
    assert torch.equal(parameter, other)


def test_states_of_half_when_weights_are_half_then_steps_are_still_counted() -> None:
    config = make_config(Kind.ADAM, ADAM, first_order_type=torch.float16)
    parameter = torch.nn.Parameter(torch.ones(SIZE, dtype=torch.float16))
    optimizer = optimizer_of(config, parameter)
    trained(optimizer, parameter, torch.ones(1, SIZE, dtype=torch.float16))
    optimizer.state[parameter]["step"].fill_(4097.0)  # float16 cannot represent this number.
    optimizer.load_state_dict(optimizer.state_dict())
    state = optimizer.state[parameter]
    assert state["step"].item() == 4097.0
    trained(optimizer, parameter, torch.ones(1, SIZE, dtype=torch.float16))
    state = optimizer.state[parameter]
    assert state["step"].item() == 4098.0 and state["Accl1"].dtype is torch.float16


def test_scheduler_when_it_changes_the_rate_then_the_next_step_has_it() -> None:
    config, parameter, gradients = example("SGD with dampening")
    optimizer = optimizer_of(config, parameter)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
    trained(optimizer, parameter, gradients[:1])
    scheduler.step()
    before = parameter.detach().clone()
    trained(optimizer, parameter, gradients[1:2])
    assert torch.equal(parameter, before)


def test_step_when_it_clips_then_all_gradients_count_together() -> None:
    hypers = {**SGD, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0}
    config = make_config(Kind.SGD2, hypers, max_grad_norm=1.0)
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    groups = [{"params": [one], "group_index": 0, **hypers} for one in parameters]
    optimizer = FormulaOptimizer(groups, config)
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    assert optimizer.step(lambda: torch.tensor(7.0)) == 7.0
    torch.testing.assert_close(parameters[0].detach(), torch.tensor([-0.06, 0.0]))
    torch.testing.assert_close(parameters[1].detach(), torch.tensor([0.0, -0.08]))
    assert torch.equal(parameters[2], torch.zeros(2))
