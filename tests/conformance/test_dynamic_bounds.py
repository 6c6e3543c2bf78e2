"""Ranges whose bounds are tensors: ops-coverage section 2 (`slice`), api.md section 12.4."""

import pytest
import torch
from support.flow_models import infer, train_weight

import poptorch_emu as poptorch

X = torch.arange(24.0).reshape(2, 12)
pytestmark = pytest.mark.feature("x[t : t + k]", fidelity="exact")


def at(start: int) -> torch.Tensor:
    return torch.tensor([start])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, t: x[:, t : t + 4], X[:, 3:7]),
        (lambda x, t: x[..., t - 1 : t + 1], X[:, 2:4]),
        (lambda x, t: x[1, t : t + 6 : 2], X[1, 3:9:2]),
        (lambda x, t: x[:, None, 2 * t : 2 * (t + 1)], X[:, None, 6:8]),
        (lambda x, t: x[None, ..., t : t + 3, None], X[None, :, 3:6, None]),
        (lambda x, t: x.t()[t + 1 : t.clone() - (-2)], X.t()[4:5]),
        (lambda x, t: x[torch.tensor([1, 0, 1]), t : t + 2], X[[1, 0, 1], 3:5]),
        (lambda x, t: x[:, t + 7 : t + 11], X[:, [10, 11, 0, 1]]),
        (lambda x, t: x[:, torch.tensor(2) : torch.tensor(7)], X[:, 2:7]),
    ],
)
def test_slice_when_bounds_differ_by_a_number_then_begins_at_the_value(function, expected) -> None:
    result = infer(lambda model, x, t: function(x, t.reshape(())), X, at(3))
    torch.testing.assert_close(result, expected)


def test_slice_when_trained_then_the_gradient_goes_to_the_slice() -> None:
    def forward(model, x, t):
        t = t.reshape(())
        return poptorch.identity_loss((model.weight * x)[0, t : t + 1].sum(), "none")

    assert train_weight(forward, torch.ones(1, 3), at(2)).tolist() == [0, 0, 1]


def test_slice_when_mapped_then_each_row_begins_there() -> None:
    def forward(model, x, t):
        return torch.vmap(lambda row: row[t : t + 2] * row[t])(x)

    expected = X[:, 3:5] * X[:, 3:4]
    result = infer(lambda model, x, t: forward(model, x, t.reshape(())), X, at(3))
    torch.testing.assert_close(result, expected)


def test_slice_when_in_a_loop_then_begins_at_each_turn_s_value() -> None:
    def forward(model, x, t):
        def turn(i, total):
            return [i + 1, total + x[:, i : i + 2]]

        return poptorch.for_loop(3, turn, [t.reshape(()), x[:, :2] * 0])[1]

    torch.testing.assert_close(infer(forward, X, at(3)), X[:, 3:5] + X[:, 4:6] + X[:, 5:7])


def changed(x, t):
    view = t.view(())
    stop = view + 2
    t += 1
    return x[:, view:stop]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x, t: x[:, t:], "size of a slice depends on data.*poptorch.dynamic_slice"),
        (lambda x, t: x[:, :t], "size of a slice depends on data"),
        (lambda x, t: x[:, t : 2 * t], "size of a slice depends on data"),
        (lambda x, t: x[:, t : t * t + 2], "size of a slice depends on data"),
        (changed, "size of a slice depends on data"),
        (lambda x, t: x[:, t : t + 4 : t], "Slicing step must be a constant"),
        (lambda x, t: x[:, t : t + 4 : 0], "Slicing step must be at least 1"),
        (lambda x, t: x[:, t:t], "The start and end of a slice must be different."),
        (lambda x, t: x[:, t : t - 1], "Taking a slice.*with the end less than the start"),
        (lambda x, t: x[:, t : t + 5], r"The size of the slice \(5\).*dimension \(12\)"),
    ],
)
def test_slice_when_size_is_unknown_or_does_not_fit_then_error(function, text) -> None:
    with pytest.raises(poptorch.Error, match=text):
        infer(lambda model, x, t: function(x, t.reshape(())), X, at(3))
