"""Models that share parameters, and copies of wrapped models (api.md 16.1, 16.2, 16.5)."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import pytest
import torch
from support.executor_models import Linear, X, host_value, options, training
from torch import nn

import poptorch_emu as poptorch


class Step(nn.Module):
    """A module that other models may share, with a buffer that counts its calls."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


class Scaled(nn.Module):
    """A model whose gradient depends on its weight, so that a test detects a stale weight."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss((self.part.weight * x * self.factor) ** 2, "sum")


@pytest.mark.feature("Several trainers of one parameter", fidelity="exact")
def test_two_objectives_of_one_weight_then_equal_the_plain_loops() -> None:
    part = Linear()
    models = [Scaled(0.5), Scaled(0.25)]
    for model in models:
        model.part = part
    plain = copy.deepcopy(models)
    plain[1].part = plain[0].part
    executors = [training(model, lr=0.125) for model in models]
    for which in (0, 1, 1, 0, 0, 1):
        loss = executors[which](X)
        optimizer = torch.optim.SGD(plain[which].parameters(), lr=0.125)
        optimizer.zero_grad()
        expected = plain[which](X)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach().squeeze())
    torch.testing.assert_close(part.weight.detach(), plain[0].part.weight.detach())


@pytest.mark.feature("Several trainers of one parameter", fidelity="exact")
@pytest.mark.parametrize("end", ["destroy", "drop"])
def test_trainer_that_ends_then_the_others_and_inference_go_on_from_what_it_learnt(end) -> None:
    part = Linear()
    first, second = Step(part), Step(part)
    one, two = training(first), training(second)
    follower = poptorch.inferenceModel(second, options())
    two(X)
    assert follower(X).item() == 0.5
    one(X)
    if end == "destroy":
        one.destroy()
    else:
        del one
        gc.collect()
    assert (host_value(part.weight), host_value(part.seen)) == (0.0, 2.0)
    assert follower(X).item() == 0.0
    assert two(X).item() == 0.0
    assert type(part.weight) is not nn.Parameter
    two.destroy()
    assert second.part.weight.item() == -0.5
    if end == "destroy":
        assert type(part.weight) is nn.Parameter and type(part.seen) is torch.Tensor


@pytest.mark.feature("Several trainers of one parameter", fidelity="exact")
def test_inference_when_the_model_gets_a_second_trainer_then_follows_it() -> None:
    model = Linear()
    follower = poptorch.inferenceModel(model, options())
    for expected in (0.5, 0.0, -0.5):
        trainer = training(model)
        trainer(X)
        assert follower(X).item() == expected == model.weight.item()
        trainer.destroy()


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_part_that_replaces_another_before_compilation_then_is_synced() -> None:
    model = Step(Linear())
    trainer = training(model)
    model.part = Linear()
    trainer.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.5))
    trainer(X)
    assert model.part.weight.item() == 0.5


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_shallow_copy_of_a_wrapped_model_then_wrapped_until_the_model_is_destroyed() -> None:
    model = Linear()
    trainer = training(model)
    trainer(X)
    duplicate = copy.copy(model)
    weight, seen = copy.copy(model.weight), copy.copy(model.seen)
    assert type(duplicate).__name__ == "PoptorchLinear"
    assert type(weight) is type(model.weight) and type(seen) is type(model.seen)
    with pytest.raises(RuntimeError, match="Model has already been wrapped"):
        training(duplicate)
    trainer(X)
    assert (weight.item(), seen.item(), duplicate.weight.item()) == (0.0, 2.0, 0.0)
    duplicate.destroy()
    assert type(model) is type(duplicate) is Linear
    assert type(model.weight) is nn.Parameter
    assert training(duplicate)(X).item() == 0.0


class WithLock(Linear):
    """A model with a lock, which it leaves out when it is pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __getstate__(self):
        assert type(self) is WithLock
        return {key: value for key, value in vars(self).items() if key != "lock"}


class Rebuilt(Linear):
    def __reduce__(self):
        return _rebuilt, (self.weight.item(),)


def _rebuilt(value: float) -> Rebuilt:
    model = Rebuilt()
    nn.init.constant_(model.weight, value)
    return model


class Cloned(Linear):
    def __deepcopy__(self, memo):
        return _rebuilt(self.weight.item())


class Placed(Linear):
    def __new__(cls, *args):
        assert cls is Placed
        Placed.made_with = args
        return super().__new__(cls)

    def __getnewargs__(self):
        return ("here",)


@pytest.mark.feature("Wrapped models", fidelity="exact")
@pytest.mark.parametrize("cls", [Linear, WithLock, Rebuilt, Placed, Cloned])
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_models_own_way_to_be_copied_then_is_used(cls, how) -> None:
    model = cls()
    trainer = training(model)
    trainer(X)
    result = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert type(result) in (cls, Rebuilt) and result.weight.item() == 0.5
    assert not hasattr(result, "lock")
    assert cls is not Placed or Placed.made_with == ("here",)
    assert type(model).__name__ == f"Poptorch{cls.__name__}"


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_attribute_that_is_not_copied_then_is_there_in_forward() -> None:
    class Counted(WithLock):
        def forward(self, x):
            with self.lock:
                return super().forward(x)

        def __getstate__(self):
            return {key: value for key, value in vars(self).items() if key != "lock"}

    model = Counted()
    trainer = training(model)
    trainer(X)
    assert poptorch.inferenceModel(model, options())(X).item() == 0.5


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_wrapped_model_that_is_rebuilt_when_copied_then_inference_sees_trained_weights() -> None:
    model = Rebuilt()
    trainer = training(model)
    inference = poptorch.inferenceModel(model, options())
    for _ in range(2):
        trainer(X)
        assert inference(X).item() == model.weight.item()


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_model_with_a_state_of_its_own_then_can_be_saved(tmp_path) -> None:
    model = WithLock()
    trainer = training(model)
    trainer(X)
    trainer.save(tmp_path / "model.poptorch")
    loaded = poptorch.load(tmp_path / "model.poptorch")
    assert loaded.model.weight.item() == 0.5
    assert loaded(X).item() == 0.5


class Tagged(nn.Parameter):
    """A class of the user's own."""


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_parameter_with_a_class_and_attributes_of_its_own_then_keeps_them() -> None:
    model = Linear()
    model.weight = Tagged(torch.ones(1))
    model.weight.group = "decayed"
    trainer = training(model)
    trainer(X)
    copies = [copy.copy(model.weight), pickle.loads(pickle.dumps(model.weight))]
    assert [value.group for value in copies] == ["decayed"] * 2
    assert type(copy.deepcopy(model.weight)) is Tagged
    trainer.destroy()
    assert type(model.weight) is Tagged and vars(model.weight) == {"group": "decayed"}


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_repr_of_wrapped_tensors_then_is_that_of_plain_pytorch() -> None:
    model = Linear()
    trainer = training(model)
    trainer(X)
    weight, seen = nn.Parameter(torch.tensor([0.5])), torch.ones(1)
    assert (repr(model.weight), repr(model.seen)) == (repr(weight), repr(seen))
    assert f"{model.weight} {model.seen}" == f"{weight} {seen}"
    model.weight.requires_grad_(False)
    assert str(model.weight) == str(weight.requires_grad_(False))
    assert repr(list(model.parameters())) == repr([weight])


def test_weights_shared_with_a_wrapper_and_the_host_then_copied_once_after_training(caplog) -> None:
    shared = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = shared

        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            value = self.layers(x)
            return value if y is None else nn.functional.mse_loss(value, y)

    opts = poptorch.Options().showCompilationProgressBar(False)
    trained, other, on_host = Model(), Model(), Model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    training = poptorch.trainingModel(trained, opts, optimizer)
    inference = poptorch.inferenceModel(other, opts.clone())
    x, y = torch.randn(4, 2), torch.randn(4, 1)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level("DEBUG", "poptorch::python"):
            for _ in range(3):
                training(x, y)
            results = [on_host(x), inference(x), on_host(x), inference(x)]
            shared.state_dict()
        copies = [r for r in caplog.records if r.getMessage() == "Implicit copyWeightsToHost()"]
        assert len(copies) == 1
        torch.testing.assert_close(results[0], results[1])
        assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
