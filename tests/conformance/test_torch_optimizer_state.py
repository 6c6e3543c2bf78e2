"""The state of PyTorch's own optimisers: training can continue here or in plain PyTorch."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import defaultdict

import pytest
import torch
from support.regression import Regression, assert_same_parameters, batches, train_plain
from support.small_models import options

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("State of PyTorch's own optimisers", fidelity="exact")

_OPTIMIZERS = {
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "sgd dampening": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "rmsprop all": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}


@pytest.fixture(params=_OPTIMIZERS)
def make(request):
    return _OPTIMIZERS[request.param]


def train(model, optimizer, data, opts=None):
    """Returns the executor after a call for each batch."""
    training = poptorch.trainingModel(model, opts or options(), optimizer)
    for batch in data:
        training(*batch)
    return training


def uninterrupted(start, make, data, opts=None):
    """Returns a copy of the model, trained on all of `data` without interruption."""
    model = copy.deepcopy(start)
    train(model, make(model.parameters()), data, opts).destroy()
    return model


def _by_state_dict(model, optimizer, make):
    state = copy.deepcopy(optimizer.state_dict())
    second = copy.deepcopy(model)
    fresh = make(second.parameters())
    fresh.load_state_dict(state)
    return second, fresh


def _by_pickle(model, optimizer, make):
    return pickle.loads(pickle.dumps((model, optimizer)))


def _by_deepcopy(model, optimizer, make):
    return copy.deepcopy((model, optimizer))


@pytest.mark.parametrize("move", [_by_state_dict, _by_pickle, _by_deepcopy])
def test_state_when_moved_to_another_executor_then_training_goes_on_exactly(make, move) -> None:
    model, data = Regression(), batches(8)
    expected = uninterrupted(model, make, data)
    optimizer = make(model.parameters())
    training = train(model, optimizer, data[:4])
    second, fresh = move(model, optimizer, make)
    training(*data[4])  # The copy was made before, so this call does not change it.
    training.destroy()
    train(second, fresh, data[4:]).destroy()
    assert_same_parameters(second, expected, tolerance=0.0)


def test_state_when_the_same_optimizer_is_wrapped_again_then_training_goes_on_exactly(make) -> None:
    model, data = Regression(), batches(6)
    expected = uninterrupted(model, make, data)
    optimizer = make(model.parameters())
    train(model, optimizer, data[:3]).destroy()
    train(model, optimizer, data[3:]).destroy()
    assert_same_parameters(model, expected, tolerance=0.0)


def test_state_when_the_wrapper_is_dropped_then_stays_with_the_optimizer(make) -> None:
    model, data = Regression(), batches(6)
    expected = uninterrupted(model, make, data)
    optimizer = make(model.parameters())
    train(model, optimizer, data[:3])
    gc.collect()
    model, optimizer = copy.deepcopy((model, optimizer))
    train(model, optimizer, data[3:]).destroy()
    assert_same_parameters(model, expected, tolerance=0.0)


def test_state_when_plain_pytorch_goes_on_with_it_then_agrees(make) -> None:
    model, data = Regression(), batches(8)
    if "dampening" in make(model.parameters()).defaults:
        # With dampening the first velocity differs, so plain PyTorch trains on the first batch.
        plain_first, data = data[:1], data[1:]
        first = make(model.parameters())
        train_plain(model, first, plain_first)
        start = first.state_dict()
    else:
        start = None
    plain, reference = copy.deepcopy(model), None
    optimizer, reference = make(model.parameters()), make(plain.parameters())
    if start is not None:
        optimizer.load_state_dict(copy.deepcopy(start))
        reference.load_state_dict(copy.deepcopy(start))
    train(model, optimizer, data[:4]).destroy()
    train_plain(plain, reference, data[:4])
    states = optimizer.state_dict()["state"], reference.state_dict()["state"]
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-6)
    train_plain(model, optimizer, data[4:])
    train_plain(plain, reference, data[4:])
    assert_same_parameters(model, plain)


def test_state_when_plain_pytorch_trained_first_then_the_device_goes_on(make) -> None:
    model, data = Regression(), batches(8)
    plain = copy.deepcopy(model)
    optimizer, reference = make(model.parameters()), make(plain.parameters())
    train_plain(model, optimizer, data[:4])
    train(model, optimizer, data[4:]).destroy()
    train_plain(plain, reference, data)
    assert_same_parameters(model, plain)


def test_state_when_loaded_while_attached_then_next_call_uses_it(make) -> None:
    model, data = Regression(), batches(6)
    optimizer = make(model.parameters())
    training = train(model, optimizer, data[:2])
    state = copy.deepcopy(optimizer.state_dict())
    weights = copy.deepcopy(model.state_dict())
    losses = [training(*batch).item() for batch in data[2:]]
    training.load_state_dict(weights)
    optimizer.load_state_dict(state)
    torch.testing.assert_close(optimizer.state_dict()["state"], state["state"], rtol=0, atol=0)
    assert [training(*batch).item() for batch in data[2:]] == losses
    training.destroy()


def test_values_when_loaded_with_a_state_then_next_call_uses_them_too() -> None:
    model, data = Regression(), batches(6)
    plain = copy.deepcopy(model)
    optimizer, reference = (_OPTIMIZERS["sgd momentum"](m.parameters()) for m in (model, plain))
    training = train(model, optimizer, data[:3])
    train_plain(plain, reference, data[:3])
    for each in (optimizer, reference):
        state = copy.deepcopy(each.state_dict())
        state["param_groups"][0].update(lr=0.2, momentum=0.5)
        each.load_state_dict(state)
    for batch in data[3:]:
        training(*batch)
    training.destroy()
    train_plain(plain, reference, data[3:])
    assert_same_parameters(model, plain)


def test_state_of_half_parameters_then_is_kept_in_float_and_loaded_rounded() -> None:
    model, data = Regression().half(), [tuple(t.half() for t in pair) for pair in batches(4)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training = train(model, optimizer, data[:2])
    state = copy.deepcopy(optimizer.state_dict())
    assert {each["momentum_buffer"].dtype for each in state["state"].values()} == {torch.float32}
    optimizer.load_state_dict(state)  # PyTorch rounds to the type of the parameter.
    losses = [training(*batch) for batch in data[2:]]
    training.destroy()
    assert all(loss.isfinite() for loss in losses)


@pytest.mark.parametrize("way", ["setOptimizer", "detach", "weights"])
def test_state_when_loaded_and_sent_in_another_way_then_is_used(make, way: str) -> None:
    model, data = Regression(), batches(6)
    optimizer = make(model.parameters())
    training = train(model, optimizer, data[:2])
    state = copy.deepcopy(optimizer.state_dict())
    weights = copy.deepcopy(model.state_dict())
    losses = [training(*batch).item() for batch in data[2:]]
    other = make(model.parameters()) if way == "setOptimizer" else optimizer
    other.load_state_dict(state)
    if way == "detach":
        training.detachFromDevice()
    elif way == "setOptimizer":
        training.setOptimizer(other)
    training.load_state_dict(weights)
    assert [training(*batch).item() for batch in data[2:]] == losses
    training.destroy()


def test_state_when_device_is_given_back_between_calls_then_goes_on_exactly(make) -> None:
    model, data = Regression(), batches(6)
    expected = uninterrupted(model, make, data)
    training = train(model, make(model.parameters()), data[:2])
    for batch in data[2:]:
        training.detachFromDevice()
        training(*batch)
        training.copyWeightsToHost()
        training.copyWeightsToDevice()
    training.destroy()
    assert_same_parameters(model, expected, tolerance=0.0)


def test_state_when_saved_with_the_program_then_goes_on_exactly(make, tmp_path) -> None:
    model, data = Regression(), batches(6)
    expected = uninterrupted(model, make, data)
    training = train(model, make(model.parameters()), data[:3])
    training.save(tmp_path / "model.poptorch")
    training.destroy()
    loaded = poptorch.load(tmp_path / "model.poptorch")
    for batch in data[3:]:
        loaded(*batch)
    loaded.destroy()
    assert_same_parameters(loaded.model, expected, tolerance=0.0)


def test_set_optimizer_when_new_one_has_no_state_then_the_device_goes_on_and_both_show_it() -> None:
    model, data = Regression(), batches(4)
    make = _OPTIMIZERS["adam"]
    expected = uninterrupted(model, make, data)
    old, new = make(model.parameters()), make(model.parameters())
    training = train(model, old, data[:2])
    training.setOptimizer(new)
    assert {entries["step"].item() for entries in new.state.values()} == {2.0}
    for batch in data[2:]:
        training(*batch)
    assert {entries["step"].item() for entries in new.state.values()} == {4.0}
    assert {entries["step"].item() for entries in old.state.values()} == {2.0}
    training.destroy()
    assert_same_parameters(model, expected, tolerance=0.0)


def test_state_when_parameter_groups_differ_then_each_entry_belongs_to_its_parameter() -> None:
    def make(model):
        return torch.optim.SGD(
            [
                {"params": model.second.parameters(), "momentum": 0.5},
                {"params": [model.first.bias], "momentum": 0.0, "lr": 0.1},
                {"params": [model.first.weight], "nesterov": True},
            ],
            lr=0.02,
            momentum=0.9,
        )

    model, data = Regression(), batches(8)
    plain, whole = copy.deepcopy(model), copy.deepcopy(model)
    optimizer, reference = make(model), make(plain)
    training = train(model, optimizer, data[:4])
    state = copy.deepcopy(optimizer.state_dict())
    training.destroy()
    train_plain(plain, reference, data[:4])
    assert state["state"].keys() == reference.state_dict()["state"].keys() == {0, 1, 3}
    torch.testing.assert_close(state["state"], reference.state_dict()["state"])
    train(whole, make(whole), data).destroy()
    optimizer = make(model)
    optimizer.load_state_dict(state)
    train(model, optimizer, data[4:]).destroy()
    assert_same_parameters(model, whole, tolerance=0.0)


def test_state_when_a_parameter_is_in_no_group_then_goes_on_exactly() -> None:
    def make(model):
        return torch.optim.Adam(model.second.parameters(), lr=0.01)

    model, data = Regression(), batches(6)
    whole = copy.deepcopy(model)
    train(whole, make(whole), data).destroy()
    optimizer = make(model)
    training = train(model, optimizer, data[:3])
    state = copy.deepcopy(optimizer.state_dict())
    training.destroy()
    assert "first.weight" in state["state"]
    optimizer = make(model)
    optimizer.load_state_dict(state)
    train(model, optimizer, data[3:]).destroy()
    assert_same_parameters(model, whole, tolerance=0.0)


def _reset_whole(optimizer):
    optimizer.state = defaultdict(dict)


def _clear(optimizer):
    optimizer.state.clear()


def _zero_tensors(optimizer):
    for entries in optimizer.state.values():
        entries["momentum_buffer"].zero_()


def _replace_entries(optimizer):
    for parameter in optimizer.param_groups[0]["params"]:
        optimizer.state[parameter]["momentum_buffer"] = None


@pytest.mark.parametrize("edit", [_reset_whole, _clear, _zero_tensors, _replace_entries])
@pytest.mark.parametrize("is_attached", [True, False])
def test_state_when_edited_on_the_host_then_next_call_uses_that(edit, is_attached: bool) -> None:
    model, data = Regression(), batches(8)
    plain, make = copy.deepcopy(model), _OPTIMIZERS["sgd momentum"]
    optimizer, reference = make(model.parameters()), make(plain.parameters())
    training = train(model, optimizer, data[:4])
    train_plain(plain, reference, data[:4])
    edit(optimizer)
    edit(reference)
    if not is_attached:
        training.detachFromDevice()
    for batch in data[4:]:
        training(*batch)
    training.destroy()
    train_plain(plain, reference, data[4:])
    assert_same_parameters(model, plain)


@pytest.mark.parametrize("kind", ["adam", "rmsprop all"])
def test_step_when_a_call_has_several_updates_then_counts_each(kind: str) -> None:
    model = Regression()
    optimizer = _OPTIMIZERS[kind](model.parameters())
    opts = options(iterations=3, accumulation=2)
    training = poptorch.trainingModel(model, opts, optimizer)
    for number in (1, 2):
        training(torch.randn(24, 6), torch.randn(24, 3))
        steps = [entries["step"] for entries in optimizer.state_dict()["state"].values()]
        assert all(torch.equal(step, torch.tensor(3.0 * number)) for step in steps)
    training.destroy()
    assert len(steps) == 4


@pytest.mark.parametrize("step", [4, 4.0, torch.tensor(4.0), torch.tensor([4])])
def test_step_when_an_older_checkpoint_has_a_number_then_is_taken(step) -> None:
    model, data = Regression(), batches(8)
    make = _OPTIMIZERS["adam"]
    expected = uninterrupted(model, make, data)
    optimizer = make(model.parameters())
    train(model, optimizer, data[:4]).destroy()
    for entries in optimizer.state.values():
        entries["step"] = step
    train(model, optimizer, data[4:]).destroy()
    assert_same_parameters(model, expected, tolerance=0.0)


def test_state_when_nothing_has_run_then_is_empty_as_in_pytorch() -> None:
    model, data = Regression(), batches(1)
    optimizer = _OPTIMIZERS["adam"](model.parameters())
    training = poptorch.trainingModel(model, options(), optimizer)
    assert optimizer.state_dict()["state"] == {}
    training.compile(*data[0])
    assert optimizer.state_dict()["state"] == {} and len(optimizer.state) == 0
    training.destroy()
    assert optimizer.state_dict()["state"] == {}


def test_state_when_shapes_are_those_of_another_model_then_says_which() -> None:
    model, data = Regression(), batches(1)
    optimizer = _OPTIMIZERS["adam"](model.parameters())
    training = train(model, optimizer, data)
    optimizer.state[model.first.weight]["exp_avg"] = torch.zeros(7, 7)
    with pytest.raises(ValueError, match=r"exp_avg of parameter first.weight has the shape \[7, 7"):
        training(*data[0])
    optimizer.state[model.first.weight]["exp_avg"] = torch.zeros(5, 6)
    training(*data[0])
    training.destroy()


def test_amsgrad_when_loaded_then_is_refused() -> None:
    model, data = Regression(), batches(1)
    optimizer = _OPTIMIZERS["adam"](model.parameters())
    training = train(model, optimizer, data)
    other = torch.optim.Adam(model.parameters(), amsgrad=True)
    optimizer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="non-amsgrad"):
        training(*data[0])
    training.destroy()


@pytest.mark.parametrize("kind", ["sgd momentum", "adam"])
def test_state_when_sharded_over_replicas_then_goes_on_exactly(kind: str) -> None:
    def sharded():
        opts = options(accumulation=2).replicationFactor(2)
        where = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
        opts.TensorLocations.setOptimizerLocation(where.minElementsForReplicatedTensorSharding(2))
        return opts

    def call(training):
        return training(*(torch.cat(each) for each in zip(*data, strict=True)))

    model, data, make = Regression(), batches(4), _OPTIMIZERS[kind]
    whole = copy.deepcopy(model)
    training = poptorch.trainingModel(whole, sharded(), make(whole.parameters()))
    for _ in range(4):
        call(training)
    training.destroy()
    optimizer = make(model.parameters())
    training = poptorch.trainingModel(model, sharded(), optimizer)
    call(training), call(training)
    state = copy.deepcopy(optimizer.state_dict())
    training.destroy()
    optimizer = make(model.parameters())
    optimizer.load_state_dict(state)
    training = poptorch.trainingModel(model, sharded(), optimizer)
    call(training), call(training)
    training.destroy()
    assert_same_parameters(model, whole, tolerance=0.0)


def test_state_when_looked_at_in_other_ways_then_is_the_newest() -> None:
    model, data = Regression(), batches(3)
    optimizer = _OPTIMIZERS["adam"](model.parameters())
    training = train(model, optimizer, data[:1])
    looks = [
        lambda state: next(iter(state.items()))[1],
        lambda state: list(state.values())[0],
        lambda state: state[model.first.weight],
        lambda state: state.get(model.first.weight),
        lambda state: dict(state)[model.first.weight],
        lambda state: {**state}[model.first.weight],
        lambda state: copy.copy(state)[model.first.weight],
        lambda state: state.copy()[model.first.weight],
    ]
    for number, look in enumerate(looks):
        training(*data[1])
        assert look(optimizer.state)["step"] == number + 2
    training(*data[2])
    assert "tensor(10.)" in repr(optimizer.state)
    assert isinstance(optimizer.state, defaultdict)
    training.destroy()


def test_scheduler_and_state_when_both_are_resumed_then_goes_on_exactly() -> None:
    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def go_on(training, optimizer, scheduler, data):
        for batch in data:
            training(*batch)
            scheduler.step()
            training.setOptimizer(optimizer)

    model, data = Regression(), batches(8)
    plain = copy.deepcopy(model)
    optimizer, scheduler = make(model)
    training = poptorch.trainingModel(model, options(), optimizer)
    go_on(training, optimizer, scheduler, data[:3])
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    training.destroy()
    optimizer, scheduler = make(model)
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    training = poptorch.trainingModel(model, options(), optimizer)
    go_on(training, optimizer, scheduler, data[3:])
    training.destroy()
    reference, scheduler = make(plain)
    for batch in data:
        train_plain(plain, reference, [batch])
        scheduler.step()
    assert_same_parameters(model, plain)


def test_optimizer_when_shared_by_two_wrappers_of_the_same_weights_then_they_share_its_state():
    def twin(model):
        other = Regression()
        other.first, other.second = model.first, model.second
        return other

    model, data = Regression(), batches(6)
    expected = uninterrupted(model, _OPTIMIZERS["adam"], data)
    optimizer = _OPTIMIZERS["adam"](model.parameters())
    wrappers = [poptorch.trainingModel(each, options(), optimizer) for each in (model, twin(model))]
    for number, batch in enumerate(data):
        wrappers[number % 2](*batch)
    for wrapper in wrappers:
        wrapper.destroy()
    assert_same_parameters(model, expected, tolerance=0.0)
