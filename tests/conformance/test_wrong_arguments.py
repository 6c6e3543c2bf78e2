"""Wrong arguments of public functions cause errors that name them."""

import logging

import pytest
import torch
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Errors about wrong arguments", fidelity="exact")


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return poptorch.identity_loss(self.fc(x).sum(), "none")


_BLOCKS = {
    "BeginBlock": lambda **ids: poptorch.BeginBlock(nn.ReLU(), **ids),
    "BeginBlock of a function": lambda **ids: poptorch.BeginBlock(torch.relu, **ids),
    "Block": poptorch.Block,
    "Block.start": poptorch.Block.start,
    "BlockFunction": poptorch.BlockFunction,
}


@pytest.mark.parametrize("name", _BLOCKS)
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"user_id": 1.0}, "Block IDs are supposed to be strings but got 1.0 of type float"),
        ({"user_id": True}, "Block IDs are supposed to be strings but got True of type bool"),
        ({"ipu_id": "1"}, "ipu_id must be an integer from 0 on, or None, but got '1' of type str"),
        ({"ipu_id": -1}, "ipu_id must be an integer from 0 on, or None, but got -1 of type int"),
        ({"ipu_id": 1.0}, "ipu_id must be an integer from 0 on, or None, but got 1.0"),
    ],
)
def test_block_when_its_ids_are_wrong_then_says_so_at_once(name, ids, message):
    with pytest.raises(AssertionError, match=message):
        _BLOCKS[name](**ids)


def test_block_when_the_ipu_is_an_integer_of_another_library_then_works():
    layer = poptorch.BeginBlock(nn.ReLU(), "a", ipu_id=torch.tensor([0])[0])
    assert "BeginBlock(user_id=a, ipu_id=0)" in poptorch.module_repr(nn.Sequential(layer))
    x = torch.tensor([[-1.0, 2.0]])
    assert torch.equal(poptorch.inferenceModel(nn.Sequential(layer), options())(x), x.relu())


@pytest.mark.parametrize("wrap", [poptorch.inferenceModel, poptorch.trainingModel])
@pytest.mark.parametrize(
    "model",
    [None, torch.relu, nn.ReLU, "model"],
    ids=["nothing", "a function", "a class", "text"],
)
def test_model_when_no_module_then_says_so(wrap, model):
    with pytest.raises(
        poptorch.Error, match=r"Invalid type: 'model' is of type .* \(Expected torc"
    ):
        wrap(model)


@pytest.mark.parametrize("wrap", [poptorch.inferenceModel, poptorch.trainingModel])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_model_when_scripted_then_says_what_to_wrap(wrap):
    scripted = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(poptorch.Error, match="cannot be traced anew. Wrap the torch.nn.Module"):
        wrap(scripted)


@pytest.mark.parametrize("optimizer", ["x", 3, object()], ids=["text", "number", "object"])
def test_optimizer_when_it_is_none_then_says_which_are_known(optimizer):
    with pytest.raises(AssertionError, match="Unsupported optimizer type. Types supported"):
        poptorch.trainingModel(Loss(), options(), optimizer)
    training = poptorch.trainingModel(Loss(), options())
    with pytest.raises(AssertionError, match="Unsupported optimizer type. Types supported"):
        training.setOptimizer(optimizer)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "LAMB"])
@pytest.mark.parametrize("betas", [[0.9, 0.99], 0.9, (0.9, 0.99, 0.999)], ids=str)
def test_betas_when_no_pair_then_says_so(name, betas):
    with pytest.raises(AssertionError, match="Expected a pair for betas but got .* instead"):
        getattr(poptorch.optim, name)(Loss().parameters(), betas=betas)


def test_betas_of_a_group_when_a_list_then_says_so():
    model = Loss()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.param_groups[0]["betas"] = [0.9, 0.99]
    with pytest.raises(AssertionError, match=r"Expected a pair for betas but got \[0.9, 0.99\]"):
        poptorch.trainingModel(model, options(), optimizer)


@pytest.mark.parametrize("wrong", [[1], {}, "half", torch.int32], ids=str)
def test_partials_type_when_unknown_then_says_so(wrong):
    with pytest.raises(ValueError, match="parameter to setPartialsType should be eithertorch.fl"):
        poptorch.Options().Precision.setPartialsType(wrong)


@pytest.mark.parametrize("wrong", [torch.ones(2), [1], 1, poptorch.ReductionType.NoReduction])
def test_reduction_type_when_unknown_then_says_so(wrong):
    with pytest.raises(ValueError, match="accumulationAndReplicationReductionType must be set to"):
        poptorch.Options().Training.accumulationAndReplicationReductionType(wrong)


@pytest.mark.parametrize("wrong", [["a"], {}, None], ids=str)
def test_log_level_when_unknown_then_says_so(wrong):
    with pytest.raises(ValueError, match="^Level must be one of "):
        poptorch._logging.setPopartLogLevel(wrong)
    with pytest.raises(ValueError, match="^Unknown log level: "):
        poptorch.setLogLevel(wrong)


@pytest.mark.parametrize("wrong", [["a", "b"], [1.5, 2], None, 3, [2**70, 0]], ids=str)
def test_rng_state_when_no_integers_then_says_so_and_stays(wrong):
    model = poptorch.inferenceModel(nn.Dropout(), options())
    model(torch.ones(1, 2))
    before = model.rng_state
    with pytest.raises(TypeError, match="rng_state must be a list of integers of 64 bits"):
        model.rng_state = wrong
    assert model.rng_state == before


def test_optimizer_state_when_not_stale_then_the_log_says_it_is_cached(caplog):
    model = Loss()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options(), optimizer)
    training(torch.ones(1, 2))
    with caplog.at_level(logging.DEBUG, "poptorch::python"):
        first = optimizer.state_dict()
        assert "Using cached optimiser state dict" not in caplog.messages
        second = optimizer.state_dict()
    assert "Using cached optimiser state dict" in caplog.messages
    assert first["ipu_state"].keys() == second["ipu_state"].keys()
