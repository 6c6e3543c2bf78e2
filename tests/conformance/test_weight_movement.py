"""When weights and buffers move between host and device (api.md §16.5, §16.6)."""

from __future__ import annotations

import copy

import pytest
import torch
from support.executor_models import Linear, Plain, X, host_value, options, training

import poptorch_emu as poptorch


def download(executor, model) -> None:
    executor.copyWeightsToHost()


def if_needed(executor, model) -> None:
    assert executor.copyWeightsToHostIfNeeded() is True
    assert executor.copyWeightsToHostIfNeeded() is False


def model_if_needed(executor, model) -> None:
    assert model.copyWeightsToHostIfNeeded() is True
    assert model.copyWeightsToHostIfNeeded() is False


# Calls that bring the trained weight (1 - 0.5 = 0.5) back to the host (api.md §16.5, §16.6).
DOWNLOADS = {
    "copyWeightsToHost": download,
    "copyWeightsToHostIfNeeded": if_needed,
    "detachFromDevice": lambda executor, model: executor.detachFromDevice(),
    "destroy": lambda executor, model: executor.destroy(),
    "model.destroy": lambda executor, model: model.destroy(),
    "model.copyWeightsToHostIfNeeded": model_if_needed,
    "read of the parameter": lambda executor, model: model.weight.shape,
    "read through the executor": lambda executor, model: executor.weight.shape,
    "read of the buffer": lambda executor, model: model.seen.dtype,
    "state_dict": lambda executor, model: model.state_dict(),
    "executor.state_dict": lambda executor, model: executor.state_dict(),
    "parameters": lambda executor, model: [p.sum() for p in model.parameters()],
    "forward on the CPU": lambda executor, model: model.forward,
    "deepcopy": lambda executor, model: copy.deepcopy(model),
}


@pytest.mark.feature("Weight synchronisation", fidelity="exact")
@pytest.mark.parametrize("event", DOWNLOADS.values(), ids=DOWNLOADS.keys())
def test_event_when_trained_then_brings_the_weights_to_the_host(event) -> None:
    model = Linear()
    weight, seen = model.weight, model.seen
    executor = training(model)
    executor(X)
    assert (host_value(weight), host_value(seen)) == (1.0, 0.0)
    event(executor, model)
    assert (host_value(weight), host_value(seen)) == (0.5, 1.0)


# Calls after a write on the host, each with whether it sends the value to the device.
UPLOADS = {
    "nothing": (lambda executor, model: None, False),
    "compile": (lambda executor, model: executor.compile(X), False),
    "copyWeightsToHostIfNeeded": (lambda e, model: e.copyWeightsToHostIfNeeded(), False),
    "copyWeightsToDevice": (lambda executor, model: executor.copyWeightsToDevice(), True),
    "attachToDevice": (lambda e, model: (e.detachFromDevice(), e.attachToDevice()), True),
    "call after detach": (lambda executor, model: executor.detachFromDevice(), True),
    "call after destroy": (lambda executor, model: executor.destroy(), True),
    "load_state_dict": (lambda e, model: e.load_state_dict(model.state_dict()), True),
}


@pytest.mark.feature("Weight synchronisation", fidelity="exact")
@pytest.mark.parametrize(("event", "is_sent"), UPLOADS.values(), ids=UPLOADS.keys())
def test_event_when_the_host_was_changed_then_the_device_follows_or_not(event, is_sent) -> None:
    model = Plain()
    executor = poptorch.inferenceModel(model, options())
    assert executor(X).item() == 3
    with torch.no_grad():
        model.weight.fill_(7)
    event(executor, executor.model)
    assert executor(X).item() == (7 if is_sent else 3)


@pytest.mark.feature("PoplarExecutor.copyWeightsToDevice", fidelity="exact")
def test_copy_to_device_when_the_host_is_stale_then_what_was_learnt_is_lost() -> None:
    model = Linear()
    executor = training(model)
    executor(X)
    executor.copyWeightsToDevice()
    assert model.weight.item() == 1.0
    assert executor.copyWeightsToHostIfNeeded() is False
    assert executor(X).item() == 1.0


@pytest.mark.feature("PoplarExecutor.load_state_dict", fidelity="exact")
def test_load_state_dict_when_attached_then_uploads_and_returns_what_torch_does() -> None:
    executor = poptorch.inferenceModel(Plain(), options())
    executor(X)
    result = executor.load_state_dict({"weight": torch.tensor([5.0])})
    assert result.missing_keys == [] and result.unexpected_keys == []
    assert executor(X).item() == 5
    with pytest.raises(RuntimeError, match="Unexpected key"):
        executor.load_state_dict({"weight": X, "other": X})
    assert executor.load_state_dict({"weight": X, "a": X}, strict=False).unexpected_keys == ["a"]


@pytest.mark.feature("Weight synchronisation", fidelity="exact")
def test_inference_of_a_trained_model_then_sees_each_new_weight() -> None:
    model = Linear()
    trainer = training(model)
    validator = poptorch.inferenceModel(model, options())
    assert validator(X).item() == 1.0
    for expected in (0.5, 0.0, -0.5):
        trainer(X)
        assert validator(X).item() == expected
    trainer.copyWeightsToHost()
    assert validator(X).item() == -0.5


@pytest.mark.feature("Weight synchronisation", fidelity="exact")
def test_inference_when_trainer_is_destroyed_then_no_longer_follows() -> None:
    model = Linear()
    trainer = training(model)
    validator = poptorch.inferenceModel(model, options())
    trainer(X)
    assert validator(X).item() == 0.5
    trainer.destroy()
    with torch.no_grad():
        model.weight.fill_(9)
    assert validator(X).item() == 0.5
    validator.copyWeightsToDevice()
    assert validator(X).item() == 9


@pytest.mark.feature("Weight synchronisation", fidelity="exact")
def test_buffer_written_by_inference_then_comes_back_only_when_asked_for() -> None:
    model = Linear()
    executor = poptorch.inferenceModel(model, options())
    executor(X)
    executor(X)
    assert model.seen.item() == 0
    assert executor.copyWeightsToHostIfNeeded() is False
    executor.copyWeightsToHost()
    assert model.seen.item() == 2


@pytest.mark.feature("PoplarExecutor.copyNamedBuffersToDevice", fidelity="exact")
def test_named_buffers_when_copied_then_only_they_reach_the_device() -> None:
    model = Linear()
    opts = options().updatableNamedBuffers(["seen"])
    executor = poptorch.inferenceModel(model, opts)
    executor(X)
    with torch.no_grad():
        model.weight.fill_(4)
        model.seen.fill_(100)
    executor.copyNamedBuffersToDevice()
    assert executor(X).item() == 1
    executor.copyWeightsToHost()
    assert (model.seen.item(), model.weight.item()) == (101, 1)


@pytest.mark.feature("PoplarExecutor.copyNamedBuffersToDevice", fidelity="exact")
def test_named_buffers_when_none_or_unknown_then_error() -> None:
    executor = poptorch.inferenceModel(Linear(), options())
    executor(X)
    with pytest.raises(
        poptorch.Error, match="No named buffers marked as updatable via updatableNamedBuffers opt"
    ):
        executor.copyNamedBuffersToDevice()
    executor = poptorch.inferenceModel(Linear(), options().updatableNamedBuffers(["weight"]))
    with pytest.raises(poptorch.Error, match="'weight', which is no buffer") as error:
        executor.compile(X)
    assert error.value.type == "poptorch_cpp_error" and "seen" in str(error.value)
