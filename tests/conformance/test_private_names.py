"""Private names that public programs reach for have a working meaning (usage of programs)."""

import pytest
import torch
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.executor import hooks

pytestmark = pytest.mark.feature("Private names that programs use", fidelity="exact")


class Loss(nn.Module):
    """One weight and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x, scale=2.0):
        return poptorch.identity_loss((x * self.weight).sum() * scale, "none")


def test_optimizer_then_is_the_users_or_none():
    model = Loss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options(), optimizer)
    assert training._optimizer is optimizer
    training(torch.ones(1, 2))
    other = torch.optim.SGD(model.parameters(), lr=0.2)
    training.setOptimizer(other)
    assert training._optimizer is other
    assert poptorch.inferenceModel(nn.ReLU())._optimizer is None


def test_is_attached_then_follows_the_device():
    model = poptorch.inferenceModel(nn.ReLU(), options())
    assert model._is_attached is False
    model(torch.ones(1))
    assert model._is_attached is True
    model.detachFromDevice()
    assert model._is_attached is False


def test_args_parser_then_brings_the_arguments_of_a_call_in_order():
    training = poptorch.trainingModel(Loss(), options())
    for parser in (training._args_parser, poptorch._args_parser.ArgsParser(Loss())):
        x = torch.ones(1, 2)
        arguments = parser((), {"x": x})
        assert arguments.names == ("x", "scale")
        assert arguments.positional[0] is x
        assert arguments.positional[1] == 2.0
        by_place, by_name = arguments.rebuild_with(lambda tensor: tensor * 2)
        assert by_place == () and by_name.keys() == {"x"}
        assert torch.equal(by_name["x"], x * 2)
        with pytest.raises(AssertionError, match="y is not a valid parameter"):
            parser((), {"y": x})


def test_executable_then_tells_whether_the_model_is_compiled():
    model = poptorch.inferenceModel(nn.ReLU(), options())
    assert model._executable is None
    model(torch.ones(1))
    assert model._executable is not None
    assert model._options.toDict()["output_mode"] == 2


def test_combined_batch_size_then_is_that_of_the_loader():
    dataset = torch.utils.data.TensorDataset(torch.ones(12, 1))
    opts = options(iterations=3)
    assert poptorch.DataLoader(opts, dataset, batch_size=2)._combined_batch_size == 6
    assert poptorch.DataLoader(opts, dataset, batch_size=None)._combined_batch_size is None


def test_combine_batch_tensors_then_joins_the_tensors_of_several_batches():
    batches = [
        {"x": torch.full((2, 3), float(index)), "y": (torch.tensor([index, index]), "name")}
        for index in range(3)
    ]
    tensors = list(poptorch._utils.combine_batch_tensors_gen(batches))
    assert torch.equal(tensors[0], torch.arange(3.0).repeat_interleave(2)[:, None].expand(6, 3))
    assert torch.equal(tensors[1], torch.tensor([0, 0, 1, 1, 2, 2]))
    whole = poptorch._utils.reconstructTensorStructure(batches[0], tensors)
    assert whole["y"][1] == "name"
    with pytest.raises(ValueError, match="shorter"):
        list(poptorch._utils.combine_batch_tensors_gen([[torch.ones(1)] * 2, [torch.ones(1)]]))


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(hooks, "_substitutions", [])
    return poptorch._poplar_executor._OverwriteContextManager.registerSubsitutionManager


def test_substitution_manager_then_surrounds_the_trace_only(registered):
    said = []

    class Substitution:
        def __enter__(self):
            self.original, torch.sigmoid = torch.sigmoid, torch.tanh
            said.append("enter")

        def __exit__(self, *failure):
            torch.sigmoid = self.original
            said.append("exit")

    class Model(nn.Module):
        def forward(self, x):
            return torch.sigmoid(x)

    registered(Substitution)
    registered(Substitution)
    x = torch.tensor([0.5])
    model = poptorch.inferenceModel(Model(), options())
    torch.testing.assert_close(model(x), torch.tanh(x))
    torch.testing.assert_close(model(x), torch.tanh(x))
    assert said == ["enter", "exit"]
    torch.testing.assert_close(Model()(x), x.sigmoid())


def test_substitution_manager_when_forward_fails_then_is_left(registered):
    said = []

    class Substitution:
        def __enter__(self):
            said.append("enter")

        def __exit__(self, *failure):
            said.append("exit")

    class Model(nn.Module):
        def forward(self, x):
            raise ValueError("no forward")

    registered(Substitution)
    with pytest.raises(ValueError, match="no forward"):
        poptorch.inferenceModel(Model(), options())(torch.ones(1))
    assert said == ["enter", "exit"]
    with pytest.raises(RuntimeError, match="must be a class of context managers"):
        registered(3)


def test_propagated_shapes_then_reach_the_results_of_a_graph():
    graph = torch._C.parse_ir(
        """
        graph(%x : Tensor, %y : Tensor):
          %z : Tensor = aten::mm(%x, %y)
          %r : Tensor = aten::relu(%z)
          return (%r)
        """
    )
    poptorch.poptorch_core.propagateInputShapes(graph, [torch.ones(2, 3), torch.ones(3, 4)])
    assert [value.type().sizes() for value in graph.inputs()] == [[2, 3], [3, 4]]
    assert "Tensor(2, 4) = aten::relu" in str(graph)
    with pytest.raises(poptorch.Error, match="2 inputs, but 1 tensors"):
        poptorch.poptorch_core.propagateInputShapes(graph, [torch.ones(2, 3)])
