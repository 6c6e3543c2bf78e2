"""Functions that read values, in a form that does not (semantics.md 12.1, ops-coverage.md 3)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.small_models import run, trained

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Static forms of functions that read data", fidelity="exact")

X = torch.randn(7, 3)
WEIGHTS = torch.randn(4, 3, 5)


def _grouped(x: torch.Tensor, ends: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return F.grouped_mm(x, weights, offs=ends.int())


def _by_groups(x: torch.Tensor, ends: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    bounds = [0, *ends.tolist()]
    return torch.cat([x[a:b] @ w for a, b, w in zip(bounds, bounds[1:], weights, strict=False)])


@pytest.mark.parametrize("ends", [[2, 3, 5, 7], [0, 0, 7, 7], [7, 7, 7, 7]], ids=str)
def test_grouped_products_when_groups_depend_on_data_then_equal_those_of_each_group(ends) -> None:
    ends = torch.tensor(ends)
    torch.testing.assert_close(run(_grouped, X, ends, WEIGHTS), _by_groups(X, ends, WEIGHTS))


def test_grouped_products_when_trained_then_each_matrix_has_the_gradient_of_its_rows() -> None:
    ends = torch.tensor([2, 2, 6, 7])

    def loss(x: torch.Tensor, ends: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(_grouped(x, ends, weights).square(), "sum")

    (after,) = trained(loss, [WEIGHTS], [(X, ends)])
    leaf = WEIGHTS.clone().requires_grad_()
    _by_groups(X, ends, leaf).square().sum().backward()
    torch.testing.assert_close(after, WEIGHTS - 0.1 * leaf.grad, rtol=1e-5, atol=1e-5)


def test_grouped_products_when_of_another_form_then_error_names_the_way_out() -> None:
    with pytest.raises(poptorch.Error, match="static form. Multiply the groups one by one"):
        run(lambda x, ends: F.grouped_mm(x.T, x, offs=ends.int()), X, torch.tensor([2, 7]))


def test_histogram_when_of_integers_then_counts_them() -> None:
    experts = torch.tensor([0, 3, 3, 1, 0, 3])
    result = run(lambda e: torch.histc(e.int(), bins=4, min=0, max=3), experts)
    assert result.tolist() == [2, 1, 0, 3]


def test_value_when_made_of_constants_in_place_then_is_known() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(4, device=x.device)
        mask[1:3] = 0.0
        mask.view(2, 2)[0] += 1
        return x * int(mask.sum()) if (mask > 0).any() else x

    torch.testing.assert_close(run(function, X), X * 4)


def test_value_when_only_the_shape_of_an_input_is_read_then_is_known() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        first = torch.zeros_like(x)
        first[:, 0] = 1.0
        return x * first.sum().item()

    torch.testing.assert_close(run(function, X), X * 7)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.zeros(3, device=x.device).add_(x[0]).sum().item() * x,
        lambda x: torch.zeros_like(x).uniform_().sum().item() * x,
    ],
    ids=["of an input", "random"],
)
def test_value_when_changed_in_place_by_what_only_a_run_has_then_error(function) -> None:
    with pytest.raises(poptorch.Error, match="aten::item is only supported in eager mode"):
        run(function, X)
