"""Effects of wrapping for training on the user's model (api.md §16.2)."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch


class Tied(nn.Module):
    """Two layers with one weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.b.weight = self.a.weight
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.b(self.a(x)) * self.scale, "sum")


X = torch.ones(1, 2)


class Around(nn.Module):
    """A module around the user's model, which a subclass of the executor traces."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_executor_when_it_traces_a_module_around_the_users_then_trains_the_users_weights() -> None:
    model, plain = Tied(), Tied()
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.PoplarExecutor(Around(model), options, True, optimizer, user_model=model)
    executor(X)
    plain(X).backward()
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(
            model.get_parameter(name).detach(), weight.detach() - 0.1 * weight.grad
        )
    executor.load_state_dict(plain.state_dict())
    torch.testing.assert_close(executor(X), plain(X).detach())
    executor.destroy()


def test_executor_when_it_traces_a_copy_then_the_optimizer_is_of_another_model() -> None:
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = poptorch.Options().showCompilationProgressBar(False)
    for traced in (Around(copy.deepcopy(model)), copy.deepcopy(model)):
        executor = poptorch.PoplarExecutor(traced, options, True, optimizer, user_model=model)
        with pytest.raises(KeyError, match="'.*a.weight' of the model has that shape, but"):
            executor(X)
        executor.destroy()


@pytest.fixture
def trained() -> tuple[Tied, poptorch.PoplarExecutor]:
    """Returns a model that was trained for one call, and its wrapper; plain training agrees."""
    model = Tied()
    opts = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.1))
    executor(X)
    return model, executor


@pytest.fixture
def expected() -> dict[str, torch.Tensor]:
    """Returns the state after the same step in plain PyTorch; requested before `trained`."""
    state = torch.get_rng_state()
    model = Tied()
    torch.set_rng_state(state)
    (model(X)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def check(state, expected) -> None:
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value)


# Ways to look at a trained model, each of which returns a state dict.
VIEWS = {
    "state_dict": lambda model: model.state_dict(),
    "deepcopy": lambda model: copy.deepcopy(model).state_dict(),
    "copy": lambda model: copy.copy(model).state_dict(),
    "pickle": lambda model: pickle.loads(pickle.dumps(model)).state_dict(),
    "named tensors": lambda model: {
        **{name: value.detach() for name, value in model.named_parameters(remove_duplicate=False)},
        **dict(model.named_buffers()),
    },
    "direct reads": lambda model: {
        "a.weight": model.a.weight.detach(),
        "a.bias": model.a.bias.detach(),
        "b.weight": model.b.weight.detach(),
        "b.bias": model.b.bias.detach(),
        "scale": model.scale,
    },
}


@pytest.mark.feature("Wrapped models", fidelity="exact")
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_model_when_looked_at_after_training_then_shows_trained_values(
    view, expected, trained
) -> None:
    model, _ = trained
    check({name: view(model)[name] for name in expected}, expected)


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_deep_copy_when_there_are_many_tensors_then_each_has_its_own() -> None:
    layers = [nn.Linear(3, 3) for _ in range(20)]
    for layer in layers:
        layer.register_buffer("count", torch.randn(3))
    model = nn.Sequential(*layers)
    expected = copy.deepcopy(model).state_dict()
    wrapper = poptorch.trainingModel(model, poptorch.Options())

    duplicate = copy.deepcopy(model)
    both = copy.deepcopy([layers[0].weight, layers[0].weight, layers[1].weight])

    assert len({id(value) for value in duplicate.parameters()}) == 2 * len(layers)
    check(duplicate.state_dict(), expected)
    assert both[0] is both[1] and torch.equal(both[2], layers[1].weight)
    wrapper.destroy()


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_classes_when_wrapped_then_new_but_instances_of_the_old(trained) -> None:
    model, _ = trained
    assert type(model).__name__ == "PoptorchTied" and isinstance(model, Tied)
    assert isinstance(model.a.weight, nn.Parameter) and type(model.a.weight) is not nn.Parameter
    assert isinstance(model.scale, torch.Tensor) and type(model.scale) is not torch.Tensor


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_state_dict_then_plain_tensors_that_share_storage(trained) -> None:
    model, _ = trained
    state = model.state_dict()
    assert all(type(value) in (torch.Tensor, nn.Parameter) for value in state.values())
    assert state["a.weight"].data_ptr() == state["b.weight"].data_ptr()
    assert state["scale"].data_ptr() == model.scale.data_ptr()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert list(torch.load(file)) == list(state)


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_pickled_parts_then_plain_pytorch(trained) -> None:
    model, _ = trained
    loaded = pickle.loads(pickle.dumps(model))
    assert type(loaded) is Tied and type(loaded.a.weight) is nn.Parameter
    assert loaded.a.weight is loaded.b.weight
    assert type(pickle.loads(pickle.dumps(model.a.weight))) is nn.Parameter
    assert type(pickle.loads(pickle.dumps(model.scale))) is torch.Tensor


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_tied_parameters_then_stay_tied_and_the_device_trains_one(expected, trained) -> None:
    model, executor = trained
    assert model.a.weight is model.b.weight
    executor.destroy()
    assert model.a.weight is model.b.weight
    check(model.state_dict(), expected)


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_executor_that_dies_then_leaves_what_it_learnt_and_reading_stops_to_sync() -> None:
    model = Tied()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    opts = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, opts)
    for _ in range(2):
        executor(X)
        optimizer.zero_grad()
        plain(X).backward()
        optimizer.step()
    died = weakref.ref(executor)
    del executor
    gc.collect()
    assert died() is None
    check(model.state_dict(), plain.state_dict())


@pytest.mark.feature("Wrapped models", fidelity="exact")
@pytest.mark.parametrize("is_trained", [False, True])
def test_executor_that_dies_then_destroy_makes_the_model_plain_for_another(is_trained) -> None:
    model = Tied()
    opts = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, opts)
    if is_trained:
        executor(X)
    del executor
    gc.collect()
    with pytest.raises(RuntimeError, match="Model has already been wrapped.*model.destroy"):
        poptorch.trainingModel(model, opts)
    model.destroy()
    assert type(model) is Tied and type(model.a.weight) is nn.Parameter
    poptorch.trainingModel(model, opts)(X)


@pytest.mark.feature("Wrapped models", fidelity="exact")
def test_buffer_of_a_class_of_its_own_then_error() -> None:
    class Special(torch.Tensor):
        pass

    model = Tied()
    model.scale = torch.ones(2).as_subclass(Special)
    with pytest.raises(
        poptorch.Error, match=r"All buffers must be an instance of torch.Tensor \(Got .*Special"
    ):
        poptorch.trainingModel(model)


@pytest.mark.feature("Wrapped models", fidelity="exact")
@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
def test_options_of_another_type_then_error(wrap) -> None:
    with pytest.raises(
        poptorch.Error,
        match=r"Invalid type: 'options' is of type .*dict.* \(Expected poptorch.Options\)",
    ):
        wrap(Tied(), {"deviceIterations": 2})


@pytest.mark.feature("Wrapped models", fidelity="exact")
@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
@pytest.mark.parametrize("nothing", [None, {}, False], ids=str)
def test_options_when_falsy_then_are_the_defaults(wrap, nothing) -> None:
    assert wrap(Tied(), nothing).options.device_iterations == 1


@pytest.mark.feature("inferenceModel", fidelity="exact")
@pytest.mark.parametrize(
    ("strategy", "is_pipelined"),
    [
        (poptorch.PipelinedExecution(), True),
        (poptorch.ShardedExecution(), False),
        (poptorch.SerialPhasedExecution("block"), False),
        (poptorch.ParallelPhasedExecution("block"), False),
    ],
    ids=["pipelined", "sharded", "serial-phased", "parallel-phased"],
)
def test_inference_with_accumulation_then_error_that_depends_on_the_strategy(
    strategy, is_pipelined
) -> None:
    opts = poptorch.Options().setExecutionStrategy(strategy)
    opts.Training.gradientAccumulation(4)
    with pytest.raises(
        poptorch.Error,
        match="You must set poptorch.Options\\(\\).Training.gradientAccumulation to 1.*"
        "poptorch.inferenceModel\\(\\)",
    ) as error:
        poptorch.inferenceModel(Tied(), opts)
    hint = " Use poptorch.Options().deviceIterations"
    assert (hint in str(error.value)) == is_pipelined


@pytest.mark.feature("trainingModel", fidelity="exact")
def test_executor_as_model_then_its_user_model_is_wrapped(trained) -> None:
    model, executor = trained
    opts = poptorch.Options().showCompilationProgressBar(False)
    inference = poptorch.inferenceModel(executor, opts)
    assert inference.model.a is model.a
    with torch.no_grad():
        torch.testing.assert_close(inference(X), model(X))
    executor.destroy()
    again = poptorch.trainingModel(executor, opts)
    assert again.model is model
