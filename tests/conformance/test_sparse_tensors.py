"""Sparse tensors are refused with the line and a way out, whatever creates them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.small_models import Function, options
from torch import nn

import poptorch_emu as poptorch

pytestmark = [
    pytest.mark.feature("Sparse tensors", fidelity="refused"),
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
]

X = torch.ones(3, 3)
EDGES = torch.tensor([[0, 1], [1, 2]])
POINTERS = torch.tensor([0, 1, 2, 2])
OF_HOST = torch.eye(3).to_sparse()
with warnings.catch_warnings(action="ignore"):
    ROWS_OF_HOST = torch.eye(3).to_sparse_csr()

MADE_IN_FORWARD = {
    "of indices": lambda x: torch.sparse_coo_tensor(EDGES, x[0, :2], (3, 3)) @ x,
    "of rows": lambda x: torch.sparse_csr_tensor(POINTERS, EDGES[1], x[0, :2], (3, 3)) @ x,
    "coordinates": lambda x: x.to_sparse().to_dense(),
    "rows": lambda x: x.to_sparse_csr() @ x,
    "columns": lambda x: x.to_sparse_csc().to_dense(),
    "blocks": lambda x: x.to_sparse_bsr((1, 1)).to_dense(),
    "returned": lambda x: x.to_sparse(),
    "of a mask": lambda x: x.sparse_mask(OF_HOST).to_dense(),
}
MET_FROM_THE_HOST = {
    "product": lambda x: torch.sparse.mm(OF_HOST, x),
    "operator": lambda x: OF_HOST @ x,
    "product of rows": lambda x: ROWS_OF_HOST @ x,
    "sum of products": lambda x: torch.sparse.addmm(x, OF_HOST, x),
    "sum": lambda x: x + OF_HOST,
}


@pytest.mark.parametrize("name", MADE_IN_FORWARD)
def test_sparse_tensor_when_made_in_forward_then_refused_with_the_line(name: str) -> None:
    function: Callable[[torch.Tensor], torch.Tensor] = MADE_IN_FORWARD[name]
    line = function.__code__.co_firstlineno
    with pytest.raises(poptorch.Error, match=f"{__file__}:{line}: .* not a dense tensor.* Use"):
        poptorch.inferenceModel(Function(function), options())(X)


@pytest.mark.parametrize("name", MET_FROM_THE_HOST)
def test_sparse_tensor_of_the_host_then_refused_with_the_line(name: str) -> None:
    function: Callable[[torch.Tensor], torch.Tensor] = MET_FROM_THE_HOST[name]
    line = function.__code__.co_firstlineno
    with pytest.raises(poptorch.Error, match=f"layout torch.sparse.*{__file__}:{line},.*to_dense"):
        poptorch.inferenceModel(Function(function), options())(X)


def test_sparse_tensor_when_dense_before_it_meets_the_device_then_a_constant() -> None:
    model = Function(lambda x: OF_HOST.to_dense().to(x.device) @ x)
    assert torch.equal(poptorch.inferenceModel(model, options())(X), X)


@pytest.mark.parametrize("sparse", [OF_HOST, ROWS_OF_HOST], ids=["coordinates", "rows"])
def test_sparse_input_and_buffer_then_refused_by_name(sparse: torch.Tensor) -> None:
    with pytest.raises(poptorch.Error, match=r"Invalid input tensor: .*layout torch.sparse.*to_de"):
        poptorch.inferenceModel(nn.Identity(), options())(sparse)
    model = nn.Identity()
    model.register_buffer("adjacency", sparse)
    with pytest.raises(poptorch.Error, match=r"adjacency has the layout torch.sparse.*to_dense"):
        poptorch.inferenceModel(model, options())(X)


class Words(nn.Module):
    """Scores of words by the embedding that reads them, or by other weights."""

    def __init__(self, is_tied: bool, embedding: nn.Module) -> None:
        super().__init__()
        self.words = embedding
        self.scores = nn.Linear(3, 4, bias=False)
        if is_tied:
            self.scores.weight = embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.scores(self.words(words)).flatten(0, -2), words[:, 0])


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("layer", [nn.EmbeddingBag, nn.Embedding])
def test_sparse_gradient_then_refused_with_layer_and_line(layer, is_tied: bool) -> None:
    model = Words(is_tied, layer(4, 3, sparse=True))
    words = torch.tensor([[1], [2]])
    with pytest.raises(poptorch.Error, match=rf"layer 'words' at {__file__}:\d+ .*sparse=False"):
        poptorch.trainingModel(model, options())(words)
    assert poptorch.inferenceModel(model, options())(words).isfinite()
