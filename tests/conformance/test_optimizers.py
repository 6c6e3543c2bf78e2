"""Optimisers at work: 50 updates, groups, schedulers, states (api §13, semantics §6)."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from support.regression import Regression, assert_same_parameters, batches, train_plain
from support.small_models import options

import poptorch_emu as poptorch
from poptorch_emu.optim.optimizer_warnings import warn_once

pytestmark = pytest.mark.feature("Optimisers", fidelity="exact")

# Each optimiser's class, with arguments for which torch.optim computes the same.
_SAME_AS_TORCH = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd decay": ("SGD", {"lr": 0.1, "weight_decay": 0.02}),
    "sgd momentum": ("SGD", {"lr": 0.05, "momentum": 0.9}),
    "sgd nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", {"lr": 0.01}),
    "adam all": ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.03}),
    "adamw": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    "rmsprop": ("RMSprop", {"lr": 0.01}),
    "rmsprop all": (
        "RMSprop",
        {"lr": 0.01, "alpha": 0.9, "momentum": 0.5, "centered": True, "weight_decay": 0.01},
    ),
}


@pytest.mark.parametrize("module", [poptorch.optim, torch.optim], ids=["poptorch", "torch"])
@pytest.mark.parametrize("name", _SAME_AS_TORCH)
def test_optimizer_when_50_updates_then_agrees_with_torch_to_1e_6(name: str, module) -> None:
    kind, arguments = _SAME_AS_TORCH[name]
    model, plain = Regression(), None
    plain = copy.deepcopy(model)
    data = batches(50)
    training = poptorch.trainingModel(
        model, options(), getattr(module, kind)(model.parameters(), **arguments)
    )
    for batch in data:
        training(*batch)
    training.destroy()
    reference = getattr(torch.optim, kind)(plain.parameters(), foreach=False, **arguments)
    train_plain(plain, reference, data)
    assert_same_parameters(model, plain)


_SCHEDULERS = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5),
    "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=13),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
}


@pytest.mark.parametrize("module", [poptorch.optim, torch.optim], ids=["poptorch", "torch"])
@pytest.mark.parametrize("name", _SCHEDULERS)
def test_scheduler_when_followed_by_set_optimizer_then_drives_the_device(name: str, module) -> None:
    model, data = Regression(), batches(12)
    plain = copy.deepcopy(model)
    # OneCycleLR also changes the momentum, so that it must be variable.
    optimizer = module.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = _SCHEDULERS[name](optimizer)
    training = poptorch.trainingModel(model, options(), optimizer)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    reference_scheduler = _SCHEDULERS[name](reference)
    for batch in data:
        training(*batch)
        # PyTorch expects a step here, which does nothing without gradients.
        scheduler.optimizer.step()
        scheduler.step()
        training.setOptimizer(optimizer)
        train_plain(plain, reference, [batch])
        reference_scheduler.step()
    training.destroy()
    assert_same_parameters(model, plain)


def test_scheduler_when_alone_then_changes_nothing() -> None:
    model, data = Regression(), batches(4)
    plain = copy.deepcopy(model)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options(), optimizer)
    for batch in data:
        training(*batch)
        optimizer.param_groups[0]["lr"] *= 0.1
    training.destroy()
    train_plain(plain, torch.optim.SGD(plain.parameters(), lr=0.1), data)
    assert_same_parameters(model, plain)


def test_parameter_in_no_group_then_is_updated_with_the_default_values_and_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in PopTorch (semantics.md 6.5); plain PyTorch needs a group without values for it."""
    model, data = Regression(), batches(4)
    for each in model.second.parameters():
        each.requires_grad_(False)
    plain = copy.deepcopy(model)
    group = {"params": [model.first.bias], "lr": 0.3}
    optimizer = torch.optim.SGD([group], lr=0.05, momentum=0.9)
    training = poptorch.trainingModel(model, options(), optimizer)
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "poptorch_emu"):
        for batch in data:
            training(*batch)
    training.destroy()
    (told,) = (m for m in caplog.messages if "in no group of the optimizer" in m)
    assert told.startswith("1 parameters are") and "'first.weight'" in told
    groups = [{**group, "params": [plain.first.bias]}, {"params": [plain.first.weight]}]
    train_plain(plain, torch.optim.SGD(groups, lr=0.05, momentum=0.9), data)
    assert_same_parameters(model, plain)


def test_learning_rate_when_constant_then_scheduler_is_refused() -> None:
    model = Regression()
    optimizer = poptorch.optim.Adam(model.parameters())
    training = poptorch.trainingModel(model, options(), optimizer)
    training(*batches(1)[0])
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(
        poptorch.Error, match="learning rates.*Values are constant but do not match"
    ):
        training.setOptimizer(optimizer)
    training.destroy()


@pytest.mark.parametrize("name", ["sgd momentum", "adam all", "rmsprop all"])
def test_set_optimizer_when_another_object_then_state_on_the_device_goes_on(name: str) -> None:
    kind, arguments = _SAME_AS_TORCH[name]
    model, data = Regression(), batches(10)
    plain = copy.deepcopy(model)
    make = getattr(poptorch.optim, kind)
    training = poptorch.trainingModel(model, options(), make(model.parameters(), **arguments))
    for batch in data[:5]:
        training(*batch)
    training.setOptimizer(make(model.parameters(), **{**arguments, "lr": 0.001}))
    for batch in data[5:]:
        training(*batch)
    training.destroy()
    reference = getattr(torch.optim, kind)(plain.parameters(), foreach=False, **arguments)
    train_plain(plain, reference, data[:5])
    reference.param_groups[0]["lr"] = 0.001
    train_plain(plain, reference, data[5:])
    assert_same_parameters(model, plain)


def test_nesterov_when_variable_then_set_optimizer_switches_it() -> None:
    def make(nesterov: bool) -> poptorch.optim.SGD:
        return poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=nesterov)

    model, data = Regression(), batches(12)
    plain = copy.deepcopy(model)
    training = poptorch.trainingModel(model, options(), make(False))
    reference = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    for first, nesterov in ((0, False), (4, True), (8, False)):
        training.setOptimizer(make(nesterov))
        reference.param_groups[0]["nesterov"] = nesterov
        for batch in data[first : first + 4]:
            training(*batch)
        train_plain(plain, reference, data[first : first + 4])
    training.destroy()
    assert_same_parameters(model, plain)


def test_value_out_of_range_when_set_before_compilation_then_the_call_says_so() -> None:
    """A value that PopART refuses causes an error at compilation (semantics.md 6.6)."""
    model = Regression()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options(), optimizer)
    (group,) = optimizer.param_groups
    group["lr"] = -0.5
    training.setOptimizer(optimizer)
    (batch,) = batches(1)
    with pytest.raises(poptorch.Error, match=r"Negative learning rate \(-0.5\) in SGD") as error:
        training(*batch)
    assert error.value.type == "popart_exception"
    group["lr"] = 0.1
    training.setOptimizer(optimizer)
    training(*batch)
    group["lr"] = -0.5
    with pytest.raises(poptorch.Error, match="Negative learning rate"):
        training.setOptimizer(optimizer)


def test_nesterov_when_constant_then_set_optimizer_refuses() -> None:
    model, data = Regression(), batches(2)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training = poptorch.trainingModel(model, options(), optimizer)
    training(*data[0])
    optimizer.param_groups[0]["nesterov"] = True
    with pytest.raises(poptorch.Error, match="nesterov. Values are constant but do not match"):
        training.setOptimizer(optimizer)
    training.destroy()


_WITH_STATE = {
    "sgd": lambda p: poptorch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd combined": lambda p: poptorch.optim.SGD(
        p, lr=0.05, momentum=0.9, use_combined_accum=True, velocity_scaling=4.0
    ),
    "adam": lambda p: poptorch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: poptorch.optim.AdamW(p, lr=0.01, bias_correction=False),
    "rmsprop": lambda p: poptorch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "rmsprop tensorflow": lambda p: poptorch.optim.RMSprop(p, lr=0.01, use_tf_variant=True),
    "lamb": lambda p: poptorch.optim.LAMB(p, lr=0.01),
}


@pytest.mark.parametrize("way", ["state_dict", "pickle"])
@pytest.mark.parametrize("name", _WITH_STATE)
def test_state_when_moved_to_another_executor_then_training_goes_on_exactly(
    name: str, way: str, tmp_path
) -> None:
    model, data = Regression(), batches(10)
    uninterrupted = copy.deepcopy(model)
    make = _WITH_STATE[name]

    optimizer = make(uninterrupted.parameters())
    training = poptorch.trainingModel(uninterrupted, options(), optimizer)
    for batch in data:
        training(*batch)
    training.destroy()

    optimizer = make(model.parameters())
    training = poptorch.trainingModel(model, options(), optimizer)
    for batch in data[:5]:
        training(*batch)
    state = optimizer.state_dict()
    training.destroy()
    if way == "pickle":
        torch.save(state, tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt")
    second = copy.deepcopy(model)
    optimizer = make(second.parameters())
    optimizer.load_state_dict(state)
    training = poptorch.trainingModel(second, options(), optimizer)
    for batch in data[5:]:
        training(*batch)
    training.destroy()
    assert_same_parameters(second, uninterrupted, tolerance=0.0)


def test_state_when_loaded_while_attached_then_next_call_uses_it() -> None:
    model, data = Regression(), batches(8)
    start = copy.deepcopy(model.state_dict())
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, options(), optimizer)
    fresh = copy.deepcopy(optimizer.state_dict())
    for batch in data[:1]:
        training(*batch)
    first_state = copy.deepcopy(optimizer.state_dict())
    first_weights = copy.deepcopy(training.model.state_dict())
    losses = [training(*batch).item() for batch in data[1:]]
    training.load_state_dict(first_weights)
    optimizer.load_state_dict(first_state)
    assert [training(*batch).item() for batch in data[1:]] == losses
    training.destroy()
    assert fresh["ipu_state"] is None and start.keys() == first_weights.keys()


def test_state_when_keys_are_missing_then_the_log_names_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, data = Regression(), batches(2)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, options(), optimizer)
    training(*data[0])
    state = copy.deepcopy(optimizer.state_dict())
    del state["ipu_state"]["Accl1___first.weight"]
    del state["ipu_param"][next(iter(state["ipu_param"]))]
    state["ipu_state"]["unknown"] = torch.zeros(1)
    optimizer.load_state_dict(state)
    with caplog.at_level(logging.WARNING, logger="poptorch:cpp"):
        training(*data[1])
    training.destroy()
    assert "writeOptimizerState: ignoring missing state Accl1___first.weight" in caplog.text
    assert "writeOptimizerState: ignoring missing parameter" in caplog.text
    assert {record.name for record in caplog.records} == {"poptorch:cpp"}
    assert "unknown" not in caplog.text


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("sgd", {"Accl1"}),
        ("sgd combined", {"Accl"}),
        ("adam", {"Accl1", "Accl2", "Step"}),
        ("lamb", {"Accl1", "Accl2", "Step"}),
        ("rmsprop", {"Accl1", "Accl2", "Accl3"}),
    ],
)
def test_state_dict_when_read_then_has_poparts_names(name: str, states: set[str]) -> None:
    model = Regression()
    optimizer = _WITH_STATE[name](model.parameters())
    training = poptorch.trainingModel(model, options(), optimizer)
    training(*batches(1)[0])
    keys = optimizer.state_dict()["ipu_state"].keys()
    training.destroy()
    parameters = [name for name, _ in model.named_parameters()]
    assert set(keys) == {f"{state}___{name}" for state in states for name in parameters}


def test_maximize_when_asked_for_then_is_ignored_as_documented() -> None:
    model, data = Regression(), batches(3)
    plain = copy.deepcopy(model)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, maximize=True)
    training = poptorch.trainingModel(model, options(), optimizer)
    for batch in data:
        training(*batch)
    training.destroy()
    train_plain(plain, torch.optim.SGD(plain.parameters(), lr=0.1), data)
    assert_same_parameters(model, plain)
