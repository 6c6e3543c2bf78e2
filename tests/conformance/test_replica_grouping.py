"""Parameters with a value for each group of replicas (spec, semantics 8.4, api 16.8)."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import CommGroupType, VariableRetrievalMode

pytestmark = pytest.mark.feature("replicaGrouping", fidelity="exact")

REPLICAS, ROWS = 4, 3
ONE, ALL = VariableRetrievalMode.OnePerGroup, VariableRetrievalMode.AllReplicas

# For each grouping: type, size, and the group of each of four replicas.
GROUPINGS = [
    (CommGroupType.All, 0, [0, 0, 0, 0]),
    (CommGroupType.Consecutive, 2, [0, 0, 1, 1]),
    (CommGroupType.Orthogonal, 2, [0, 1, 0, 1]),
    (CommGroupType.NoGrouping, 1, [0, 1, 2, 3]),
]
IDS = [grouping[0].name for grouping in GROUPINGS]


class Scaled(nn.Module):
    """A grouped matrix, followed by a layer that all replicas share."""

    def __init__(self, num_groups: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_groups, 5, 4))
        self.layer = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor):
        x = torch.tanh(x @ self.weight.T) if self.weight.dim() == 2 else x
        x = self.layer(x)
        return x, poptorch.identity_loss((x - wanted) ** 2, reduction="mean")


def _options(replicas: int = REPLICAS, accumulation: int = 1):
    options = poptorch.Options()
    options.replicationFactor(replicas).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(accumulation)
    return options.showCompilationProgressBar(False)


def _expected(model, groups, make_optimizer, batches, accumulation):
    """Trains one tensor for each group in plain PyTorch; returns the losses."""
    slices = [nn.Parameter(value.clone()) for value in model.weight.detach()]
    optimizer = make_optimizer(torch.optim, [*slices, *model.layer.parameters()])
    losses = []
    for x, wanted in batches:
        optimizer.zero_grad()
        pieces = list(zip(x.split(ROWS), wanted.split(ROWS), strict=True))
        for index, (rows, target) in enumerate(pieces):
            weight = slices[groups[index % REPLICAS]]
            loss = ((model.layer(torch.tanh(rows @ weight.T)) - target) ** 2).mean()
            (loss / len(pieces)).backward()
            losses.append(loss.detach())
        optimizer.step()
    with torch.no_grad():
        model.weight.copy_(torch.stack(slices))
    return torch.stack(losses)


def _adam(module, parameters):
    return module.AdamW(parameters, lr=0.05)


def _sgd(module, parameters):
    return module.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("make", [_sgd, _adam], ids=["SGD", "AdamW"])
@pytest.mark.parametrize(("kind", "size", "groups"), GROUPINGS, ids=IDS)
def test_training_when_grouped_then_equals_split_tensors_on_the_cpu(
    kind: CommGroupType, size: int, groups: list[int], make, accumulation: int
) -> None:
    model = Scaled(1 + max(groups))
    plain = copy.deepcopy(model)
    batches = [(torch.randn(n, 4), torch.randn(n, 2)) for n in [ROWS * REPLICAS * accumulation] * 4]
    training = poptorch.trainingModel(
        model, _options(accumulation=accumulation), make(poptorch.optim, model.parameters())
    )
    training.weight.replicaGrouping(kind, size, ONE)
    losses = torch.cat([training(*batch)[1] for batch in batches])
    expected = _expected(plain, groups, make, batches, accumulation)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    training.destroy()
    assert model.weight.shape == plain.weight.shape
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_lamb_when_grouped_then_norms_are_those_of_each_group() -> None:
    model = Scaled(2)
    with torch.no_grad():
        model.weight[1] *= 10.0
    plain = copy.deepcopy(model)
    batches = [(torch.randn(12, 4), torch.randn(12, 2)) for _ in range(3)]

    def make(module, parameters):
        return poptorch.optim.LAMB(parameters, lr=0.02)

    training = poptorch.trainingModel(model, _options(), make(None, model.parameters()))
    training.weight.replicaGrouping(CommGroupType.Consecutive, 2, ONE)
    for batch in batches:
        training(*batch)
    _expected(plain, [0, 0, 1, 1], make, batches, 1)
    torch.testing.assert_close(model.weight, plain.weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "size", "groups"), GROUPINGS, ids=IDS)
def test_inference_when_grouped_then_each_replica_computes_with_its_slice(
    kind: CommGroupType, size: int, groups: list[int]
) -> None:
    model = Scaled(1 + max(groups))
    inference = poptorch.inferenceModel(model, _options())
    inference.weight.replicaGrouping(kind, size, ONE)
    x, wanted = torch.randn(REPLICAS, 4), torch.randn(REPLICAS, 2)
    result, _ = inference(x, wanted)
    for replica, group in enumerate(groups):
        expected = model.layer(torch.tanh(x[replica] @ model.weight[group].T))
        torch.testing.assert_close(result[replica], expected)


def test_groups_of_eight_replicas_when_orthogonal_by_two_then_as_documented() -> None:
    """The example of the specification: {0, 4}, {1, 5}, {2, 6}, {3, 7}."""
    model = Scaled(4)
    inference = poptorch.inferenceModel(model, _options(8))
    inference.weight.replicaGrouping(CommGroupType.Orthogonal, 2, ONE)
    row = torch.randn(1, 4)
    result, _ = inference(row.expand(8, 4).contiguous(), torch.zeros(8, 2))
    torch.testing.assert_close(result[:4], result[4:])
    assert len(result[:4].unique(dim=0)) == 4


def test_all_replicas_when_read_back_then_one_slice_a_replica_and_training_goes_on() -> None:
    model = Scaled(2)
    training = poptorch.trainingModel(model, _options(), _sgd(poptorch.optim, model.parameters()))
    training.weight.replicaGrouping(CommGroupType.Orthogonal, 2, ALL)
    batch = (torch.randn(12, 4), torch.randn(12, 2))
    training(*batch)
    training.copyWeightsToHost()
    weight = model.weight.detach().clone()
    assert weight.shape == (4, 5, 4)
    assert torch.equal(weight[0], weight[2]) and torch.equal(weight[1], weight[3])
    assert not torch.equal(weight[0], weight[1])
    training.copyWeightsToDevice()
    training.copyWeightsToHost()
    assert torch.equal(model.weight, weight)
    training(*batch)


def test_optimizer_state_when_grouped_then_has_one_value_a_group_and_survives_a_recompilation():
    model = Scaled(4)
    plain = copy.deepcopy(model)
    optimizer = _adam(poptorch.optim, model.parameters())
    training = poptorch.trainingModel(model, _options(), optimizer)
    training.weight.replicaGrouping(CommGroupType.NoGrouping, 1, ONE)
    batches = [(torch.randn(12, 4), torch.randn(12, 2)) for _ in range(4)]
    for index, batch in enumerate(batches):
        if index == 2:
            training.destroy()
        training(*batch)
    states = optimizer.state_dict()["ipu_state"]
    assert states["Accl1___weight"].shape == (4, 5, 4)
    assert states["Step___weight"].tolist() == [4.0] * 4
    training.destroy()
    _expected(plain, [0, 1, 2, 3], _adam, batches, 1)
    torch.testing.assert_close(model.weight, plain.weight, rtol=1e-4, atol=1e-5)


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


def test_scalar_when_grouped_then_refused() -> None:
    inference = poptorch.inferenceModel(Scalar(), _options(2))
    inference.factor.replicaGrouping(CommGroupType.NoGrouping, 1, ONE)
    with pytest.raises(
        poptorch.Error, match="Scalars cannot be passed as per-replica weight tensor values"
    ):
        inference(torch.ones(2, 1))


def test_first_dimension_when_not_the_number_of_groups_then_refused() -> None:
    inference = poptorch.inferenceModel(Scaled(3), _options())
    inference.weight.replicaGrouping(CommGroupType.Consecutive, 2, ONE)
    with pytest.raises(poptorch.Error, match=r"shape \(3, 5, 4\).* must be 2"):
        inference(torch.ones(4, 4), torch.ones(4, 2))


def test_group_size_when_not_a_factor_of_the_replicas_then_refused() -> None:
    inference = poptorch.inferenceModel(Scaled(3), _options())
    inference.weight.replicaGrouping(CommGroupType.Consecutive, 3, ONE)
    with pytest.raises(poptorch.Error, match=r"groups of 3 replicas .*replicationFactor\(4\)"):
        inference(torch.ones(4, 4), torch.ones(4, 2))


def test_clipping_when_grouped_then_refused() -> None:
    model = Scaled(2)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, max_grad_norm=1.0)
    training = poptorch.trainingModel(model, _options(), optimizer)
    training.weight.replicaGrouping(CommGroupType.Consecutive, 2, ONE)
    with pytest.raises(poptorch.Error, match=r"max_grad_norm=1.0 cannot be combined"):
        training(torch.ones(12, 4), torch.ones(12, 2))


class Again(Scaled):
    """A model with a second name for its grouped matrix."""

    def __init__(self, num_groups: int) -> None:
        super().__init__(num_groups)
        self.also = self.weight


def test_grouping_when_asked_for_by_the_second_name_then_it_is_the_same_parameter() -> None:
    model = Again(2)
    inference = poptorch.inferenceModel(model, _options(2))
    inference.also.replicaGrouping(CommGroupType.NoGrouping, 1, ONE)
    x = torch.randn(2, 4)
    result, _ = inference(x, torch.zeros(2, 2))
    for replica in range(2):
        expected = model.layer(torch.tanh(x[replica] @ model.weight[replica].T))
        torch.testing.assert_close(result[replica], expected)


def test_grouping_when_parameter_is_deeper_then_attribute_error() -> None:
    inference = poptorch.inferenceModel(Scaled(2), _options())
    with pytest.raises(AttributeError, match="replicaGrouping"):
        inference.layer.weight.replicaGrouping(CommGroupType.Consecutive, 2, ONE)


def test_grouping_when_asked_for_then_stored_and_the_parameter_stays_the_users() -> None:
    model = Scaled(2)
    inference = poptorch.inferenceModel(model, _options())
    assert inference.weight is model.weight
    inference.weight.replicaGrouping(CommGroupType.Consecutive, 2, ONE)
    assert inference.per_replica_params == {"weight": (CommGroupType.Consecutive, 2, ONE)}
    inference(torch.ones(4, 4), torch.ones(4, 2))
    assert not hasattr(inference.weight, "replicaGrouping")
    torch.testing.assert_close(pickle.loads(pickle.dumps(model)).weight, model.weight)
