"""Values that are known while a model is captured, whatever else reads them or is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("mask", torch.tensor([[1, 0, 1], [0, 1, 1]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.mask)


def first_column(x: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros_like(x)
    mask[:, 0] = 1
    return mask


def picked_by_mask(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return x[first_column(x).bool().nonzero(as_tuple=True)]


def picked_after_others_are_written_by_it(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    mask = first_column(x)
    scores = x * 2
    scores += mask
    scores[:, 1] = mask[:, 1] * x[:, 2]
    torch._foreach_mul_([scores], [mask + 1])
    return scores[mask.bool().nonzero(as_tuple=True)]


def picked_by_a_buffer(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x[(mask > 0).nonzero(as_tuple=True)] * mask.sum(1).max().item()


def sized_by_a_count(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    most = mask.sum(1).max()
    places = torch.arange(most, device=x.device) < mask.sum(1, keepdim=True)
    rows = x.new_zeros(len(x), most)
    rows[places.nonzero(as_tuple=True)] = x[mask.nonzero(as_tuple=True)]
    return rows + x.narrow(-1, 0, most)


KNOWN = (
    picked_by_mask,
    picked_after_others_are_written_by_it,
    picked_by_a_buffer,
    sized_by_a_count,
)


@pytest.mark.parametrize("function", KNOWN, ids=lambda f: f.__name__)
def test_places_when_made_of_constants_then_are_known(function) -> None:
    model = Function(function)
    options = poptorch.Options().showCompilationProgressBar(False)
    assert torch.equal(poptorch.inferenceModel(model, options)(X), model(X))


def written_through_a_view(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros_like(x)
    mask.view(-1)[2:].narrow(0, 0, 1).copy_(x[0, :1])
    return mask.nonzero()


def written_in_a_list(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros_like(x)
    torch._foreach_add_([mask], [x])
    return mask.nonzero()


def written_as_out(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros_like(x)
    torch.add(x, 1, out=mask)
    return mask.nonzero()


def written_by_a_piece_of_a_split(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros_like(x)
    mask.split(1)[1].mul_(x[:1])
    return mask.nonzero()


def written_by_way_of_another(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    first += x
    second += first
    return second.nonzero()


UNKNOWN = (
    written_through_a_view,
    written_in_a_list,
    written_as_out,
    written_by_a_piece_of_a_split,
    written_by_way_of_another,
)


@pytest.mark.parametrize("function", UNKNOWN, ids=lambda f: f.__name__)
def test_places_when_an_input_takes_part_then_are_refused(function) -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    with pytest.raises(poptorch.Error, match="shape depends on data"):
        poptorch.inferenceModel(Function(function), options)(X)
