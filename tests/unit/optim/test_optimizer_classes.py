"""The classes of poptorch.optim: arguments, constness, state dictionaries, copies."""

from __future__ import annotations

import copy
import inspect
import logging
import math
import pickle
import re

import pytest
import torch

from poptorch_emu.optim import LAMB, SGD, Adam, AdamW, Optimizer, RMSprop, VariableAttributes

pytestmark = pytest.mark.feature("poptorch.optim", fidelity="exact")

CLASSES = {"SGD": SGD, "Adam": Adam, "AdamW": AdamW, "RMSprop": RMSprop, "LAMB": LAMB}
# PopTorch reference, optimisers: the arguments after `params`, in order.
SIGNATURES = {
    "SGD": "lr momentum dampening weight_decay nesterov maximize foreach differentiable "
    "loss_scaling velocity_scaling use_combined_accum accum_type velocity_accum_type max_grad_norm",
    "Adam": "lr betas eps weight_decay amsgrad foreach maximize capturable differentiable fused "
    "loss_scaling accum_type first_order_momentum_accum_type second_order_momentum_accum_type "
    "max_grad_norm",
    "AdamW": "lr betas eps weight_decay amsgrad maximize foreach capturable differentiable fused "
    "loss_scaling bias_correction accum_type first_order_momentum_accum_type "
    "second_order_momentum_accum_type max_grad_norm",
    "RMSprop": "lr alpha eps weight_decay momentum centered foreach maximize differentiable "
    "loss_scaling accum_type first_order_momentum_accum_type second_order_momentum_accum_type "
    "use_tf_variant",
    "LAMB": "lr betas eps weight_decay bias_correction loss_scaling max_weight_norm accum_type "
    "first_order_momentum_accum_type second_order_momentum_accum_type",
}
every_class = pytest.mark.parametrize("name", CLASSES)


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(3, 2))


def make(name: str, **arguments: object) -> Optimizer:
    return CLASSES[name]([parameter()], **{"lr": 0.1, **arguments})


@every_class
def test_signature_when_read_then_is_poptorchs(name: str) -> None:
    parameters = inspect.signature(CLASSES[name].__init__).parameters
    positional = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == ["self", "params", *SIGNATURES[name].split()]
    assert [p.name for p in positional if p.default is p.empty] == ["self", "params"] + (
        ["lr"] if name == "SGD" else []
    )
    assert all(p.default is None for p in positional if p.default is not p.empty)


@every_class
def test_class_when_made_then_is_ours_and_torchs(name: str) -> None:
    optimizer = make(name)
    assert isinstance(optimizer, Optimizer)
    assert isinstance(optimizer, getattr(torch.optim, name, torch.optim.Optimizer))


@every_class
def test_defaults_when_nothing_is_given_then_are_torchs(name: str) -> None:
    arguments = {"lr": 0.1} if name == "SGD" else {}
    optimizer = CLASSES[name]([parameter()], **arguments)
    if name == "LAMB":
        expected = {
            "lr": 1e-3,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "weight_decay": 1e-2,
            "max_weight_norm": 65500.0,
        }
    else:
        expected = getattr(torch.optim, name)([parameter()], **arguments).defaults
    assert optimizer.defaults == expected
    assert optimizer.loss_scaling == 1.0
    assert optimizer.accum_type is torch.float32


@every_class
def test_variable_attrs_when_given_then_variable_else_constant(name: str) -> None:
    optimizer = make(name, weight_decay=0.0)
    variable = {
        attribute
        for attribute in [*optimizer.defaults, "loss_scaling"]
        if not optimizer.variable_attrs.isConstant(attribute)
    }
    assert variable == {"lr", "weight_decay"}
    assert not make(name, loss_scaling=1.0).variable_attrs.isConstant("loss_scaling")


def test_variable_attrs_when_marked_then_changes() -> None:
    attributes = VariableAttributes(["lr"], ["lr", "eps"])
    attributes.markAsConstant("lr")
    attributes.markAsVariable("eps")
    assert attributes.isConstant("lr") and not attributes.isConstant("eps")


@pytest.mark.parametrize("method", ["markAsConstant", "markAsVariable"])
def test_variable_attrs_when_unknown_then_raises(method: str) -> None:
    attributes = VariableAttributes(["lr"], ["lr", "eps"])
    with pytest.raises(
        AssertionError, match=r"Unknown attribute x, allowed values: \['lr', 'eps'\]"
    ):
        getattr(attributes, method)("x")


@pytest.mark.parametrize(
    "name, argument",
    [
        (name, argument)
        for name, signature in SIGNATURES.items()
        for argument in signature.split()
        if argument.endswith("accum_type")
    ],
)
def test_accum_type_when_neither_single_nor_half_then_raises(name: str, argument: str) -> None:
    assert getattr(make(name, **{argument: torch.float16}), argument) is torch.float16
    with pytest.raises(AssertionError, match="Accumulation types must be either torch.float32 or"):
        make(name, **{argument: torch.float64})


def test_sgd_when_velocity_scaling_is_separate_then_warns_and_ignores(
    caplog: pytest.LogCaptureFixture,
) -> None:
    optimizer = make("SGD", velocity_scaling=2.0)
    assert "velocity_scaling value ignored when using the separate variant" in caplog.text
    assert "use_combined_accum=False" in caplog.text
    assert "velocity_scaling" not in optimizer.defaults


def test_sgd_when_combined_then_velocity_scaling_is_in_groups(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = make("SGD", use_combined_accum=True, velocity_scaling=2.0)
    assert given.param_groups[0]["velocity_scaling"] == given.defaults["velocity_scaling"] == 2.0
    assert not given.variable_attrs.isConstant("velocity_scaling")
    default = make("SGD", use_combined_accum=True)
    assert default.param_groups[0]["velocity_scaling"] == 1.0
    assert default.variable_attrs.isConstant("velocity_scaling")
    assert caplog.text == ""


@every_class
def test_max_grad_norm_when_not_given_then_no_limit(name: str) -> None:
    assert getattr(make(name), "max_grad_norm", math.inf) == math.inf


@every_class
def test_lr_when_negative_then_torch_refuses(name: str) -> None:
    if name == "LAMB":
        return  # Refused when it is compiled.
    with pytest.raises(ValueError, match="Invalid learning rate"):
        make(name, lr=-1.0)


@every_class
def test_state_dict_when_not_attached_then_has_no_device_state(name: str) -> None:
    optimizer = make(name)
    torch_part = torch.optim.Optimizer.state_dict(optimizer)
    assert optimizer.state_dict() == {"ipu_state": None, "ipu_param": None, **torch_part}
    assert not optimizer.has_state()


@every_class
def test_load_state_dict_when_it_has_state_then_groups_and_state_are_restored(name: str) -> None:
    state = {"ipu_state": {"Accl1___w": torch.ones(2)}, "ipu_param": {}}
    source, target = make(name, lr=0.25), make(name)
    source.set_state_dict(state)
    target.load_state_dict(source.state_dict())
    assert target.param_groups[0]["lr"] == 0.25
    assert target.get_state_dict() == state
    assert target.has_state() and target.host_state_is_dirty


@every_class
@pytest.mark.parametrize(
    "state, message",
    [
        ({}, "Cannot load optimizer state dictionary because it is empty."),
        ({"ipu_state": {}}, "Only IPU optimizer states can be loaded onto the IPU."),
    ],
    ids=["empty", "without-parameters"],
)
def test_set_state_dict_when_incomplete_then_raises(
    name: str, state: dict[str, object], message: str
) -> None:
    for load in (make(name).set_state_dict, make(name).load_state_dict):
        with pytest.raises(RuntimeError, match=message):
            load(state)


@every_class
def test_load_state_dict_when_of_torch_then_raises(name: str) -> None:
    optimizer = make(name)
    state = torch.optim.Optimizer.state_dict(optimizer)
    with pytest.raises(RuntimeError, match="Only IPU optimizer states can be loaded onto the IPU"):
        optimizer.load_state_dict(state)


def _pickled(optimizer: Optimizer) -> Optimizer:
    return pickle.loads(pickle.dumps(optimizer))


@pytest.mark.parametrize(
    "duplicate", [_pickled, copy.copy, copy.deepcopy], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("has_state", [False, True], ids=["fresh", "with-state"])
@every_class
def test_copy_when_made_then_keeps_attributes_and_state(
    name: str, has_state: bool, duplicate
) -> None:
    optimizer = make(name, loss_scaling=8.0, accum_type=torch.float16)
    if has_state:
        optimizer.set_state_dict({"ipu_state": {"Accl1___w": torch.ones(2)}, "ipu_param": {}})
    again = duplicate(optimizer)
    assert (again.loss_scaling, again.accum_type) == (8.0, torch.float16)
    # PyTorch adds "differentiable" to the defaults of any copy.
    assert optimizer.defaults.items() <= again.defaults.items()
    assert not again.variable_attrs.isConstant("loss_scaling")
    assert again.has_state() == again.host_state_is_dirty == has_state
    if has_state:
        assert torch.equal(again.get_state_dict()["ipu_state"]["Accl1___w"], torch.ones(2))


@every_class
def test_pickle_when_a_scheduler_holds_it_then_works(name: str) -> None:
    optimizer = make(name)
    torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    assert _pickled(optimizer).param_groups[0]["initial_lr"] == 0.1


@every_class
def test_arguments_when_torch_has_newer_ones_then_taken_by_keyword(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    newer = {"SGD": {"fused": False}, "RMSprop": {"capturable": False}}.get(name, {})
    optimizer = make(name, **newer)
    assert all(optimizer.defaults[key] == value for key, value in newer.items())
    assert caplog.record_tuples == [] and logging.getLogger("poptorch::python").handlers


def test_lamb_step_when_run_on_the_host_then_follows_the_formula() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = LAMB([weight], lr=0.5, weight_decay=0.0)
    weight.grad = torch.tensor([2.0, -2.0])
    optimizer.step()
    # The first direction is the sign of the gradient, of norm sqrt(2); the weight's norm is 5.
    step = 0.5 * 5 / math.sqrt(2)
    torch.testing.assert_close(weight.detach(), torch.tensor([3.0 - step, 4.0 + step]))


def test_lamb_step_when_given_a_closure_then_returns_its_loss_with_gradients() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = LAMB([weight], lr=0.1)

    def closure() -> torch.Tensor:
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert not torch.equal(weight.detach(), torch.ones(2))


@every_class
def test_group_when_added_later_then_has_the_defaults_and_its_own_values(name: str) -> None:
    first, second = parameter(), parameter()
    optimizer = CLASSES[name]([first], lr=0.5)
    optimizer.add_param_group({"params": [second], "lr": 0.25})
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
    assert optimizer.param_groups[1]["params"][0] is second
    assert optimizer.param_groups[0].keys() == optimizer.param_groups[1].keys()
    second.grad = torch.ones(3, 2)
    before = second.detach().clone()
    optimizer.step()
    assert not torch.equal(second.detach(), before)


@every_class
def test_group_when_wrong_then_refused_as_by_pytorch_and_not_added(name: str) -> None:
    first = parameter()
    optimizer, theirs = CLASSES[name]([first], lr=0.5), torch.optim.SGD([first], lr=0.5)
    for group in ({"params": [first]}, {"params": [1.0]}, {"params": [first * 2]}):
        with pytest.raises((TypeError, ValueError)) as of_theirs:
            theirs.add_param_group(dict(group))
        with pytest.raises(of_theirs.type, match=re.escape(str(of_theirs.value))):
            optimizer.add_param_group(dict(group))
    assert len(optimizer.param_groups) == 1
