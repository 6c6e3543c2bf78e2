"""Values that are known during a capture, in spite of other reads and writes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
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


CONSTANT = 1.0 / torch.tensor(8.0)
ON_IPU = torch.tensor([4.0, 5.0])


def in_a_loop(x: torch.Tensor, body: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    if poptorch.isRunningOnIpu():
        return poptorch.for_loop(2, body, [x])[0]
    return body(body(x))


def of_the_host(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    x = x * CONSTANT.item() if CONSTANT < 1 else x
    return in_a_loop(x, lambda y: y / float(CONSTANT) + [1, 2, 3][torch.tensor(2)])


def read_in_a_body(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scale = CONSTANT.to(x.device) * 2
    return in_a_loop(x, lambda y: y * scale.item() + int(mask.sum()) + y[mask > 0].sum())


def read_in_a_body_of_a_body(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    count = torch.tensor(3)
    return in_a_loop(x, lambda y: in_a_loop(y, lambda z: z * 2 if count > mask.max() else z))


def made_in_a_body(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return in_a_loop(x, lambda y: y * torch.arange(3.0, device=y.device)[2].item())


def went_before(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    kept = ON_IPU.to("ipu") if poptorch.isRunningOnIpu() else ON_IPU
    return x * kept.tolist()[1] + kept.sum().item()


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    upper = torch.ones(3, 3, dtype=torch.bool).triu(1)
    x[:, torch.tensor([True, False, True])] *= 2
    x[mask > 1] = 7.0
    return torch.cat(
        [
            x[mask > 0],
            (x.t() @ x)[upper],
            x.masked_select(mask[0] == 0),
            x[0, 0].masked_select(mask[0, 0] == 1),
        ]
    )


def masked_by_the_host(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return x[torch.tensor([False, True], device="cpu")] + x[torch.zeros(2).bool()].sum()


def repeated(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows = x.repeat_interleave(mask[0], dim=1)
    return torch.cat([rows, x.repeat_interleave(torch.tensor([2, 1], device="cpu"), 0)[:2]], 1)


def counted(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    first, second = x.tensor_split(torch.tensor([1]), 1)
    return torch.cat([second, first], 1) * torch.bincount(mask.view(-1) + mask.sum())[-1]


def through_numpy(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    mean = float(np.asarray(mask).mean()) + float(torch.arange(3.0).numpy()[2])
    return x * float(f"{mask.sum() / 3:.3f}") + mean


CONSTANTS = (
    of_the_host,
    read_in_a_body,
    read_in_a_body_of_a_body,
    made_in_a_body,
    went_before,
    masked,
    masked_by_the_host,
    repeated,
    counted,
    through_numpy,
)


@pytest.mark.parametrize("function", CONSTANTS, ids=lambda f: f.__name__)
def test_value_when_made_of_constants_alone_then_is_read_and_trained_with(function) -> None:
    class Model(Function):
        def __init__(self) -> None:
            super().__init__(function)
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            result = super().forward(x * self.weight)
            return result, nn.functional.mse_loss(result, torch.zeros_like(result))

    model, plain = Model(), Model()
    options = poptorch.Options().showCompilationProgressBar(False)
    optimizer = poptorch.optim.SGD([model.weight], lr=1.0)
    result, _ = poptorch.trainingModel(model, options, optimizer)(X)
    expected, loss = plain(X)
    loss.backward()
    torch.testing.assert_close(result, expected.detach())
    torch.testing.assert_close(model.weight, 1.0 - plain.weight.grad, rtol=1e-4, atol=1e-4)


def changed_by_a_body(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    count = torch.zeros(3)

    def body(y: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return y * count[0].item()

    return in_a_loop(x, body)


def state_of_a_loop(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return poptorch.for_loop(2, lambda y, z: [y * z.sum().item(), z], [x, mask.float()])[0]


@pytest.mark.parametrize("function", [changed_by_a_body, state_of_a_loop], ids=lambda f: f.__name__)
def test_value_when_it_may_be_another_in_each_iteration_then_is_refused(function) -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    with pytest.raises(poptorch.Error, match="only supported in eager mode"):
        poptorch.inferenceModel(Function(function), options)(X)


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
