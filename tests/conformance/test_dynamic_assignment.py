"""Assignments at positions in tensors, `x[t : t + k] = y` and `x[t] = y`: api.md section 12.4."""

import pytest
import torch
from support.flow_models import FunctionModel, infer, quiet_options, train_weight

import poptorch_emu as poptorch

X = torch.arange(24.0).reshape(2, 12)
pytestmark = pytest.mark.feature("x[t : t + k] = y", fidelity="exact")


def at(start: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor([start], dtype=dtype)


def slice_is_value(x, t):
    x[:, t : t + 4] = torch.full((2, 4), -1.0)


def slice_is_number(x, t):
    x[..., t - 1 : t + 1] = 7


def slice_is_row_that_broadcasts(x, t):
    x[:, t : t + 4] = x[0, :4] * 10


def slice_is_of_another_type(x, t):
    x[:, t : t + 2] = torch.tensor([1, 2])


def slice_has_a_step(x, t):
    x[1, t : t + 6 : 2] = torch.ones(3)


def slice_in_two_axes(x, t):
    x[t - 2 : t - 1, t : t + 4] = 5


def slice_beside_indices(x, t):
    x[torch.tensor([1, 0]), t : t + 2] = x[:, :2] * 100


def slice_of_a_view(x, t):
    x.t()[t : t + 3] = -2


def slice_of_a_slice(x, t):
    x[1:, 2:][:, t : t + 2] = 9


def slice_is_added_to(x, t):
    x[:, t : t + 4] += 10


def slice_is_multiplied_and_read(x, t):
    view = x[1]
    x[:, t : t + 2] *= 3
    x[0] = view


def slices_of_an_advancing_start(x, t):
    for number in range(3):
        x[:, t : t + 2] = number
        t += 2


def number_is_value(x, t):
    x[:, t] = torch.tensor([50.0, 60.0])


def number_is_negative(x, t):
    x[:, -t] = 3


def number_is_added_to(x, t):
    x[0, t] += x[1, t + 1]


def number_beside_slice(x, t):
    x[t - 2, t : t + 3] = 8


def number_beside_indices(x, t):
    x[[0, 1, 0], t] = torch.tensor([1.0, 2.0, 3.0])[1]


def gathered_part_is_a_copy(x, t):
    part = x[torch.tensor([1, 0]), t : t + 2]
    part += 1
    x[:, :2] = part


ASSIGNMENTS = [
    slice_is_value,
    slice_is_number,
    slice_is_row_that_broadcasts,
    slice_is_of_another_type,
    slice_has_a_step,
    slice_in_two_axes,
    slice_beside_indices,
    slice_of_a_view,
    slice_of_a_slice,
    slice_is_added_to,
    slice_is_multiplied_and_read,
    slices_of_an_advancing_start,
    number_is_value,
    number_is_negative,
    number_is_added_to,
    number_beside_slice,
    number_beside_indices,
    gathered_part_is_a_copy,
]


@pytest.mark.parametrize("assign", ASSIGNMENTS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_assignment_when_run_then_as_in_pytorch(assign, dtype) -> None:
    def forward(model, x, t):
        x, t = x.clone(), t.clone().reshape(())
        assign(x, t)
        return x

    expected = forward(None, X, at(3, dtype))
    torch.testing.assert_close(infer(forward, X, at(3, dtype)), expected)


def test_assignment_when_past_the_end_then_goes_on_at_the_beginning() -> None:
    def forward(model, x, t):
        x = x.clone()
        x[:, t : t + 4] = torch.arange(4.0)
        return x

    expected = X.clone()
    expected[:, [10, 11, 0, 1]] = torch.arange(4.0)
    torch.testing.assert_close(infer(forward, X, at(10)), expected)


def test_assignment_when_to_an_input_then_the_caller_s_tensor_changes() -> None:
    def forward(model, x, t):
        x[:, t : t + 4] = 0
        return x.sum()

    x = X.clone()
    infer(forward, x, at(2))
    expected = X.clone()
    expected[:, 2:6] = 0
    torch.testing.assert_close(x, expected)


class Cache(torch.nn.Module):
    """A buffer that stores each input behind the earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(6, 2))

    def forward(self, rows: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.kept[position : position + 2] = rows
        return self.kept.cumsum(0)


def test_assignment_when_to_a_buffer_then_it_stays() -> None:
    plain = Cache()
    emulated = poptorch.inferenceModel(Cache(), quiet_options())
    for position in (0, 2, 4):
        rows = torch.randn(2, 2)
        expected = plain(rows, at(position))
        torch.testing.assert_close(emulated(rows, at(position)), expected)
    emulated.copyWeightsToHost()
    torch.testing.assert_close(emulated.kept, plain.kept)


def test_assignment_when_in_a_loop_then_at_each_turn_s_value() -> None:
    def forward(model, x, t):
        def turn(i, total):
            total[:, i : i + 2] += x[:, :2]
            total[0, i] = 0
            return [i + 1, total]

        return poptorch.for_loop(3, turn, [t.reshape(()), x])[1]

    expected = X.clone()
    for i in (3, 4, 5):
        expected[:, i : i + 2] += X[:, :2]
        expected[0, i] = 0
    torch.testing.assert_close(infer(forward, X, at(3)), expected)


def loss_of(model, x, t):
    t = t.reshape(())
    x = model.weight * x
    x[t : t + 2] = x[:2].clone().square()
    x[t] *= 3
    x[t + 1] = x[0].clone().exp()
    return poptorch.identity_loss((x * torch.arange(4.0)).sum(), "none")


def loss_of_loop(model, x, t):
    def turn(i, x):
        x[i : i + 2] *= model.weight[:2]
        return [i + 1, x]

    result = poptorch.for_loop(2, turn, [t.reshape(()), model.weight * x])[1]
    return poptorch.identity_loss((result * x).sum(), "none")


@pytest.mark.parametrize("start", [0, 1, 2])
def test_assignment_when_trained_then_gradient_is_pytorch_s(start) -> None:
    weight, x = torch.randn(4), torch.randn(4)
    plain = FunctionModel(loss_of, weight)
    plain(x, at(start)).backward()
    gradient = train_weight(loss_of, x, at(start), weight=weight)
    torch.testing.assert_close(gradient, plain.weight.grad, rtol=1e-5, atol=1e-6)


def test_assignment_when_trained_in_a_loop_then_gradient_is_pytorch_s() -> None:
    weight, x = torch.randn(4), torch.randn(4)
    leaf = weight.clone().requires_grad_()
    result = leaf * x
    for i in (1, 2):
        result = result.clone()
        result[i : i + 2] *= leaf[:2]
    (result * x).sum().backward()
    gradient = train_weight(loss_of_loop, x, at(1), weight=weight)
    torch.testing.assert_close(gradient, leaf.grad, rtol=1e-5, atol=1e-6)


def size_of_data(x, t):
    x[:, t:] = 0


def size_that_does_not_divide(x, t):
    x[:, t : t + 5] = 0


def value_of_another_shape(x, t):
    x[:, t : t + 4] = torch.zeros(3)


def method_of_a_slice(x, t):
    x[:, t : t + 4].zero_()


def slice_of_a_part(x, t):
    x[:, t : t + 4][0] += 1


def method_of_a_chunk(x, t):
    x[:, t : t + 4].chunk(2, 1)[1].zero_()


def method_of_a_number(x, t):
    x[:, t].fill_(1)


COPY = r"test_dynamic_assignment.py:\d+, with an index that is a tensor, is a copy.*clone\(\)"


@pytest.mark.parametrize(
    ("assign", "error", "text"),
    [
        (size_of_data, poptorch.Error, "size of a slice depends on data.*poptorch.dynamic_slice"),
        (size_that_does_not_divide, poptorch.Error, r"size of the slice \(5\).*dimension \(12\)"),
        (value_of_another_shape, RuntimeError, "expand|broadcast"),
        (method_of_a_slice, poptorch.Error, COPY),
        (slice_of_a_part, poptorch.Error, COPY),
        (method_of_a_chunk, poptorch.Error, COPY),
        (method_of_a_number, poptorch.Error, COPY),
    ],
)
def test_assignment_when_it_cannot_be_static_then_error(assign, error, text) -> None:
    def forward(model, x, t):
        assign(x.clone(), t.reshape(()))
        return x

    with pytest.raises(error, match=text):
        infer(forward, X, at(3))


def test_part_when_changed_in_the_body_of_a_loop_then_error() -> None:
    def turn(i, x):
        x[:, i : i + 2].zero_()
        return [i + 1, x]

    def forward(model, x, t):
        return poptorch.for_loop(3, turn, [t.reshape(()), x])[1]

    with pytest.raises(poptorch.Error, match=COPY):
        infer(forward, X, at(3))
