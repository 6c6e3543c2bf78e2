"""Slices that begin at the position in a tensor: api.md section 12.4."""

import pytest
import torch
from support.flow_models import infer, train_weight

import poptorch_emu as poptorch

X = torch.arange(24.0).reshape(2, 12)
slicing = pytest.mark.feature("dynamic_slice", fidelity="exact")
updating = pytest.mark.feature("dynamic_update", fidelity="exact")


@slicing
@pytest.mark.parametrize(
    ("start", "size", "step"), [(0, 4, 1), (3, 6, 2), (8, 4, 3), (5, 12, 1), (10, 4, 1)]
)
def test_slice_when_run_then_it_begins_at_the_value_and_wraps(start, size, step):
    result = infer(
        lambda m, x, s: poptorch.dynamic_slice(x, 1, s, size, step), X, torch.tensor([[start]])
    )
    index = [(start + k) % 12 for k in range(0, size, step)]
    torch.testing.assert_close(result, X[:, index])


@slicing
def test_slice_when_called_outside_a_trace_then_it_ends_at_the_end():
    result = poptorch.dynamic_slice(X, 1, torch.tensor(10), 4, 1)
    torch.testing.assert_close(result, X[:, 10:])


@slicing
def test_slice_when_trained_then_the_gradient_goes_to_the_slice():
    def forward(model, x, start):
        part = poptorch.dynamic_slice(model.weight * x, 1, start, 1, 1)
        return poptorch.identity_loss(part.sum(), "none")

    gradient = train_weight(forward, torch.ones(1, 3), torch.tensor([[2]]))
    assert gradient.tolist() == [0, 0, 1]


@slicing
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, 1, torch.tensor(0), 4, 1), "dynamic_slice must take a torch.tensor input"),
        ((X, 1.0, torch.tensor(0), 4, 1), "Dimension must be an integer"),
        ((X, 1, 0, 4, 1), "Slice start argument to dynamic_slice must be a torch.tensor"),
        ((X, 1, torch.tensor(0), 4.0, 1), "Size must be an integer"),
        ((X, 1, torch.tensor(0), 4, 1.5), "Step must be an integer"),
        ((X, 1, torch.tensor(0), 0, 1), "The start and end of a slice must be different"),
        ((X, 1, torch.tensor(0), -1, 1), "Taking a slice.*with the end less than the start"),
        ((X, 1, torch.tensor(0), 4, 0), "Slicing step must be at least 1"),
        ((X, 1, torch.tensor(0), 5, 1), r"The size of the slice \(5\).*dimension \(12\)"),
        ((X, 1, torch.tensor(0.0), 4, 1), "Expected integer typed start tensor"),
    ],
)
def test_slice_when_arguments_are_wrong_then_error(arguments, text):
    with pytest.raises(poptorch.Error, match=text):
        poptorch.dynamic_slice(*arguments)


@updating
@pytest.mark.parametrize("start", [0, 4, 10])
def test_update_when_run_then_only_the_slice_changes(start):
    src = -torch.ones(2, 4)

    def forward(model, x, src, s):
        return poptorch.dynamic_update(x, src, 1, s, 4), x

    result, x = infer(forward, X, src, torch.tensor([[start]]))
    expected = X.clone()
    expected[:, [(start + k) % 12 for k in range(4)]] = -1
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(x, X)


@updating
@pytest.mark.parametrize("size", [1, 5, 7, 12])
def test_update_when_its_size_is_no_factor_of_the_axis_then_runs(size):
    src = torch.randn(2, size)

    def forward(model, x, src, s):
        return poptorch.dynamic_update(x, src, 1, s, size)

    result = infer(forward, X, src, torch.tensor([9]))
    expected = X.clone()
    expected[:, [(9 + k) % 12 for k in range(size)]] = src
    torch.testing.assert_close(result, expected)


@updating
def test_update_when_it_is_larger_than_the_axis_then_error():
    src = torch.zeros(2, 13)
    with pytest.raises(poptorch.Error, match=r"size of the slice \(13\) is larger .* \(12\)"):
        infer(lambda m, x, s: poptorch.dynamic_update(x, src, 1, s, 13), X, torch.tensor([0]))


@updating
def test_update_when_called_outside_a_trace_then_it_is_a_scatter():
    result = poptorch.dynamic_update(X, torch.zeros(2, 3), 1, torch.tensor(2), 3)
    torch.testing.assert_close(result, torch.slice_scatter(X, torch.zeros(2, 3), 1, 2, 5))


@updating
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, X, 1, torch.tensor(0), 4), "dynamic_update must take a torch.tensor input"),
        ((X, 3, 1, torch.tensor(0), 4), "dynamic_update must take a torch.tensor src"),
        ((X, X[0], 1, torch.tensor(0), 4), r"same dimensionality. \(2\) vs \(1\)"),
        ((X, X.int(), 1, torch.tensor(0), 4), r"same dtype. \(torch.float32 vs torch.int32\)"),
        ((X, X, 1, 0, 12), "Slice start argument to dynamic_update must be a torch.tensor"),
    ],
)
def test_update_when_arguments_are_wrong_then_error(arguments, text):
    with pytest.raises(poptorch.Error, match=text):
        poptorch.dynamic_update(*arguments)
