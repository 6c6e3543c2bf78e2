"""The link between an optimiser and a device, with a device that only records."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu.optim.device_link import OptimizerLink
from poptorch_emu.options.optimizer_settings import optimizer_settings
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig

pytestmark = pytest.mark.feature("setOptimizer and optimiser state", fidelity="exact")

ours = poptorch.optim
SETTINGS = optimizer_settings(poptorch.Options())


class Device:
    """A device that records the values it receives; its only state counts the reads."""

    num_windows = 1

    def __init__(self) -> None:
        self.states = {"Accl1___w": torch.zeros(2)}
        self.sent: list[OptimizerConfig] = []
        self.num_reads = 0

    def set_hyper_parameters(self, optimizer: OptimizerConfig) -> None:
        self.sent.append(optimizer)

    def read_states(self) -> dict[str, torch.Tensor]:
        self.num_reads += 1
        return {name: value.clone() for name, value in self.states.items()}

    def write_states(self, states: Mapping[str, torch.Tensor]) -> list[str]:
        self.states.update({name: states[name] for name in self.states if name in states})
        return [name for name in self.states if name not in states]

    @property
    def lr(self) -> float:
        return self.sent[-1].groups[1]["lr"].value


class Setup:
    def __init__(self, kind=ours.SGD, **arguments) -> None:
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.optimizer = self.make(kind, **arguments)
        self.link = OptimizerLink(self.optimizer, SETTINGS)
        self.device = Device()

    def make(self, kind=ours.SGD, **arguments):
        return kind([self.weight], **{"lr": 0.1, "momentum": 0.9, **arguments})

    def attach(self) -> Setup:
        self.link.config({"w": self.weight}, is_running_mean=False)
        self.link.send(self.device)
        return self

    def run(self) -> None:
        self.link.send_if_dirty(self.device)
        self.device.states["Accl1___w"] = self.device.states["Accl1___w"] + 1


def test_state_dict_when_run_then_is_read_once() -> None:
    setup = Setup().attach()
    setup.run()
    for _ in range(2):
        state = setup.optimizer.state_dict()
    assert torch.equal(state["ipu_state"]["Accl1___w"], torch.ones(2))
    assert setup.device.num_reads == 1


def test_state_dict_when_run_again_then_is_fresh() -> None:
    setup = Setup().attach()
    for count in (1, 2):
        setup.run()
        assert setup.optimizer.state_dict()["ipu_state"]["Accl1___w"].tolist() == [count, count]


def test_state_dict_when_attached_then_shows_the_variable_hypers() -> None:
    setup = Setup(loss_scaling=4.0).attach()
    assert setup.optimizer.state_dict()["ipu_param"] == {
        "scaledLearningRate2___specific___w": torch.tensor(0.1),
        "scaledMomentum2___specific___w": torch.tensor(0.9),
        "lossScaling_FLOAT": torch.tensor(4.0),
    }


def test_pickle_when_run_then_has_the_state_of_the_device() -> None:
    setup = Setup().attach()
    setup.run()
    again = pickle.loads(pickle.dumps(setup.optimizer))
    assert torch.equal(again.get_state_dict()["ipu_state"]["Accl1___w"], torch.ones(2))
    assert again.host_state_is_dirty


def test_send_when_state_was_loaded_before_then_uploads_it() -> None:
    setup = Setup()
    setup.optimizer.set_state_dict(
        {"ipu_state": {"Accl1___w": torch.full((2,), 7.0)}, "ipu_param": {}}
    )
    setup.attach()
    assert setup.device.states["Accl1___w"].tolist() == [7.0, 7.0]


def test_send_when_something_is_missing_then_says_so(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    setup.optimizer.set_state_dict({"ipu_state": {"x": torch.ones(2)}, "ipu_param": {}})
    setup.attach()
    assert "writeOptimizerState: ignoring missing state Accl1___w" in caplog.text
    missing = "ignoring missing parameter scaledLearningRate2___specific___w"
    assert f"writeOptimizerState: {missing}" in caplog.text


def test_load_when_attached_then_next_call_uploads_state_and_values() -> None:
    setup = Setup().attach()
    setup.run()
    saved = setup.optimizer.state_dict()
    saved["param_groups"][0]["lr"] = 0.5
    setup.run()
    setup.optimizer.load_state_dict(saved)
    assert torch.equal(setup.optimizer.state_dict()["ipu_state"]["Accl1___w"], torch.ones(2))
    setup.run()
    assert setup.device.states["Accl1___w"].tolist() == [2.0, 2.0]
    assert setup.device.lr == 0.5


def test_lr_when_changed_then_waits_for_set_optimizer() -> None:
    setup = Setup().attach()
    setup.optimizer.param_groups[0]["lr"] = 0.5
    setup.run()
    assert setup.device.lr == 0.1
    setup.link.replace(setup.optimizer, setup.device)
    assert setup.device.lr == 0.5


def test_replace_when_object_differs_then_old_is_frozen_and_state_goes_on() -> None:
    setup = Setup().attach()
    setup.run()
    new = setup.make(lr=0.5)
    setup.link.replace(new, setup.device)
    setup.run()
    assert torch.equal(setup.optimizer.state_dict()["ipu_state"]["Accl1___w"], torch.ones(2))
    assert new.state_dict()["ipu_state"]["Accl1___w"].tolist() == [2.0, 2.0]
    assert setup.device.lr == 0.5


def test_replace_when_new_one_has_state_then_uploads_it() -> None:
    setup = Setup().attach()
    new = setup.make()
    new.set_state_dict({"ipu_state": {"Accl1___w": torch.full((2,), 7.0)}, "ipu_param": {}})
    setup.link.replace(new, setup.device)
    assert setup.device.states["Accl1___w"].tolist() == [7.0, 7.0]


def test_replace_when_incompatible_then_nothing_changes() -> None:
    setup = Setup().attach()
    with pytest.raises(poptorch.Error, match="Clip norm settings do not match"):
        setup.link.replace(setup.make(lr=0.5, max_grad_norm=1.0), setup.device)
    setup.link.send(setup.device)
    assert setup.device.lr == 0.1


def test_replace_when_detached_then_sent_at_the_next_attach() -> None:
    setup = Setup().attach()
    setup.run()
    setup.link.receive(setup.device)
    setup.link.replace(setup.make(lr=0.5), None)
    device = Device()
    setup.link.send(device)
    assert device.lr == 0.5
    assert device.states["Accl1___w"].tolist() == [1.0, 1.0]


def test_replace_when_not_compiled_then_any_class_will_do() -> None:
    setup = Setup()
    setup.link.replace(torch.optim.Adam([setup.weight]), None)
    assert setup.link.config({"w": setup.weight}, is_running_mean=False).kind.name == "ADAM"


@pytest.mark.parametrize("kind", [ours.SGD, torch.optim.SGD], ids=["poptorch", "torch"])
def test_state_when_detached_and_attached_then_survives(kind: type) -> None:
    setup = Setup(kind).attach()
    setup.run()
    setup.link.receive(setup.device)
    setup.device = Device()
    setup.link.send(setup.device)
    assert setup.device.states["Accl1___w"].tolist() == [1.0, 1.0]


def test_running_mean_when_the_optimiser_is_replaced_then_as_the_new_one_needs() -> None:
    setup = Setup()
    assert not setup.link.needs_running_mean
    setup.link.replace(setup.make(accum_type=torch.float16), None)
    assert setup.link.needs_running_mean


def test_replace_when_compiled_for_a_running_mean_then_half_accumulation_may_come() -> None:
    setup = Setup(accum_type=torch.float16)
    setup.link.config({"w": setup.weight}, is_running_mean=True)
    setup.link.replace(setup.make(lr=0.5, accum_type=torch.float16), None)
    assert setup.link.needs_running_mean


def test_replace_when_half_accumulation_comes_too_late_then_raises() -> None:
    setup = Setup().attach()
    with pytest.raises(ValueError, match="Invalid optimizer.*is already compiled"):
        setup.link.replace(setup.make(accum_type=torch.float16), setup.device)


def test_constructor_when_optimizer_is_unsupported_then_raises() -> None:
    with pytest.raises(AssertionError, match="Unsupported optimizer type"):
        OptimizerLink(torch.optim.Adagrad([torch.nn.Parameter(torch.ones(1))]), SETTINGS)


def test_constructor_when_a_value_is_refused_then_waits_for_compilation() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    link = OptimizerLink(ours.Adam([weight], eps=0.0), SETTINGS)
    with pytest.raises(poptorch.Error, match="Non-positive eps"):
        link.config({"w": weight}, is_running_mean=False)


@pytest.mark.parametrize("base", [ours.SGD, torch.optim.SGD], ids=["poptorch", "torch"])
def test_subclass_when_given_then_warned_of_once_and_not_again_at_compilation(
    base: type, caplog: pytest.LogCaptureFixture
) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    link = OptimizerLink(type("Mine", (base,), {})([weight], lr=0.1), SETTINGS)
    link.config({"w": weight}, is_running_mean=False)
    (record,) = caplog.records
    assert "Optimizer `Mine` subclassed from classes in poptorch.optim" in record.getMessage()
    assert "Poptorch does not run Python optimizer code directly" in record.getMessage()


@pytest.mark.parametrize("relaxed", [False, True], ids=["strict", "relaxed"])
def test_attributes_when_unexpected_then_said_once(
    relaxed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="poptorch::python")
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer, options = ours.SGD([weight], lr=0.1), poptorch.Options()
    if relaxed:
        options.relaxOptimizerAttributesChecks()
    link = OptimizerLink(optimizer, optimizer_settings(options))
    optimizer.extra = 1
    optimizer.defaults["other"] = 2
    optimizer.param_groups[0]["extra"] = 3
    for _ in range(2):
        link.replace(optimizer, None)
    records = [r for r in caplog.records if "Ignoring unexpected" in r.getMessage()]
    assert sorted(record.getMessage() for record in records) == [
        "Ignoring unexpected default group variable in SGD2 optimizer: ['other']",
        "Ignoring unexpected group 0 attribute in SGD2 optimizer: ['extra']",
        "Ignoring unexpected optimizer attribute in SGD2 optimizer: ['extra']",
    ]
    assert {r.levelno for r in records} == {logging.DEBUG if relaxed else logging.WARNING}
