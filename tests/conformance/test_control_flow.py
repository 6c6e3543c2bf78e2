"""Loops and branches on the device: api.md section 12.3, semantics.md sections 15 and 18."""

import numpy as np
import pytest
import torch
from support.flow_models import infer, quiet_options

import poptorch_emu as poptorch

X = torch.tensor([[1.0, 2.0, -3.0]])


@pytest.mark.feature("for_loop", fidelity="exact")
def test_loop_when_run_then_each_iteration_gets_the_one_before():
    (result,) = infer(lambda m, x: poptorch.for_loop(5, lambda y: y * m.weight + 1, [x]), X)
    expected = X
    for _ in range(5):
        expected = expected * torch.tensor([0.5, -1.0, 2.0]) + 1
    torch.testing.assert_close(result, expected)


@pytest.mark.feature("for_loop", fidelity="exact")
def test_loop_when_run_then_the_body_is_traced_once():
    calls = []

    def forward(model, x):
        def body(a, b):
            calls.append(1)
            return b, a + b

        return poptorch.for_loop(6, body, [x, x])

    first, second = infer(forward, X)
    torch.testing.assert_close(first, 13 * X)
    torch.testing.assert_close(second, 21 * X)
    assert calls == [1]


@pytest.mark.feature("for_loop", fidelity="exact")
@pytest.mark.parametrize("as_result", [list, tuple])
def test_loop_when_body_returns_a_container_then_the_result_is_a_list(as_result):
    structures = []

    def forward(model, x):
        result = poptorch.for_loop(2, lambda y: as_result([y + 1]), [x])
        structures.append(type(result))
        return result

    torch.testing.assert_close(infer(forward, X)[0], X + 2)
    assert structures == [list]


@pytest.mark.feature("for_loop", fidelity="exact")
def test_loop_when_it_writes_in_place_then_nothing_outside_changes():
    def forward(model, x):
        outer = x * 1

        def body(y):
            y += 1
            outer.mul_(2)
            return y + outer

        (result,) = poptorch.for_loop(3, body, [x])
        return result, x, outer

    result, x, outer = infer(forward, X)
    torch.testing.assert_close(x, X)
    torch.testing.assert_close(outer, X)
    torch.testing.assert_close(result, X + 3 * (1 + 2 * X))


@pytest.mark.feature("for_loop", fidelity="exact")
def test_loop_when_outer_tensor_was_changed_before_then_the_body_sees_the_change():
    def forward(model, x):
        total = x.clone()
        total += 10
        (result,) = poptorch.for_loop(2, lambda y: y + total, [x])
        total += 1
        return result, total

    result, total = infer(forward, X)
    torch.testing.assert_close(result, X + 2 * (X + 10))
    torch.testing.assert_close(total, X + 11)


@pytest.mark.feature("for_loop", fidelity="exact")
def test_loop_when_nested_then_inner_captures_from_both_scopes():
    def forward(model, x):
        def outer(y):
            scale = y.sum() * 0.01
            return poptorch.for_loop(2, lambda z: z * scale + model.weight, [y])

        return poptorch.for_loop(3, outer, [x])

    (result,) = infer(forward, X)
    weight, expected = torch.tensor([0.5, -1.0, 2.0]), X
    for _ in range(3):
        scale = expected.sum() * 0.01
        for _ in range(2):
            expected = expected * scale + weight
    torch.testing.assert_close(result, expected)


@pytest.mark.feature("for_loop", fidelity="exact")
def test_loop_when_run_for_many_micro_batches_then_each_is_its_own():
    rows = torch.arange(4.0).reshape(4, 1)
    (result,) = infer(
        lambda m, x: poptorch.for_loop(2, lambda y: y * 3, [x]), rows, deviceIterations=4
    )
    torch.testing.assert_close(result, rows * 9)


@pytest.mark.feature("for_loop", fidelity="exact")
def test_loop_when_it_draws_numbers_then_each_iteration_has_its_own():
    def forward(model, x):
        def body(rows, index):
            drawn = torch.rand(4, device="ipu")
            row = torch.arange(8, device="ipu").reshape(8, 1) == index
            return torch.where(row, drawn, rows), index + 1

        return poptorch.for_loop(8, body, [x, torch.tensor(0, device="cpu").to("ipu")])[0]

    first = infer(forward, torch.zeros(8, 4))
    assert len(first.flatten().unique()) == 32
    assert torch.equal(first, infer(forward, torch.zeros(8, 4)))


@pytest.mark.feature("for_loop", fidelity="exact")
@pytest.mark.parametrize("count", [0, -1])
def test_loop_when_count_is_not_positive_then_inputs_come_back(count):
    (result,) = infer(lambda m, x: poptorch.for_loop(count, lambda y: y + 1, [x]), X)
    torch.testing.assert_close(result, X)


@pytest.mark.feature("for_loop", fidelity="exact")
def test_loop_when_called_outside_a_trace_then_the_body_runs_once_on_copies():
    x = X.clone()
    assert torch.equal(poptorch.for_loop(7, lambda y: y.add_(1), [x])[0], X + 1)
    assert torch.equal(x, X)


@pytest.mark.feature("for_loop", fidelity="exact")
@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (X, r"for_loop expects input tensors \(inputs\).*\(Object is not list\)"),
        ([X, 3], r"\(Object contained in list at index 1 is not torch.tensor\)"),
    ],
    ids=["no list", "no tensor"],
)
def test_loop_when_inputs_are_wrong_then_value_error(inputs, text):
    with pytest.raises(ValueError, match=text):
        poptorch.for_loop(1, lambda y: y, inputs)


@pytest.mark.feature("for_loop", fidelity="exact")
def test_loop_when_there_are_no_inputs_then_error():
    with pytest.raises(poptorch.Error, match="given no inputs.*Pass the tensors"):
        infer(lambda m, x: [x, *poptorch.for_loop(2, list, [])], X)


@pytest.mark.feature("for_loop", fidelity="exact")
@pytest.mark.parametrize(
    "body",
    [lambda y: [y, y], lambda y: y[:, :2], lambda y: y.int(), lambda y: 3],
    ids=["count", "shape", "type", "no tensor"],
)
def test_loop_when_body_returns_something_else_then_error_names_it(body):
    with pytest.raises(poptorch.Error, match=r"test_control_flow.py:\d+"):
        infer(lambda m, x: poptorch.for_loop(2, body, [x]), X)


@pytest.mark.feature("for_loop", fidelity="exact")
def test_loop_when_an_operation_fails_then_error_names_the_iteration():
    def forward(model, x, index):
        return poptorch.for_loop(3, lambda i: i + torch.gather(x, 1, i), [index])

    options = quiet_options()
    compiled = poptorch.inferenceModel(_Gather(forward), options)
    with pytest.raises(poptorch.Error, match=r"node 'gather.*in iteration 2 of 'for_loop"):
        compiled(torch.tensor([[1, 5, 0]]), torch.tensor([[0]]))
    (result,) = compiled(torch.tensor([[1, 1, 0]]), torch.tensor([[0]]))
    assert result.tolist() == [[2]]


@pytest.mark.feature("for_loop", fidelity="exact")
@pytest.mark.parametrize("use", [lambda t: t + 1, lambda t: t], ids=["operation", "output"])
def test_loop_when_a_tensor_leaks_from_the_body_then_error_says_so(use):
    def forward(model, x):
        leaked = []

        def body(y):
            leaked.append(y + 1)
            return y

        poptorch.for_loop(2, body, [x])
        return use(leaked[0])

    with pytest.raises(poptorch.Error, match="made inside a body of poptorch.for_loop"):
        infer(forward, X)


class _Gather(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, index):
        return self.function(self, x, index)


@pytest.mark.feature("cond", fidelity="exact")
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["then", "else"])
def test_cond_when_run_then_the_value_decides(sign):
    def forward(model, x):
        return poptorch.cond(
            x.sum() > 0, lambda a: a * model.weight, [x], lambda: model.weight.reshape(1, 3), []
        )

    weight = torch.tensor([0.5, -1.0, 2.0])
    x = sign * X.abs()
    (result,) = infer(forward, x)
    torch.testing.assert_close(result, x * weight if sign > 0 else weight.reshape(1, 3))


@pytest.mark.feature("cond", fidelity="exact")
def test_cond_when_only_one_side_can_run_then_the_other_does_not():
    def forward(model, x, index):
        return poptorch.cond(
            index[0, 0] < 3, lambda: torch.gather(x, 1, index), [], lambda: x[:, :1] * 0, []
        )

    x = torch.tensor([[4.0, 5.0, 6.0]])
    assert infer(forward, x, torch.tensor([[1]]))[0].item() == 5
    assert infer(forward, x, torch.tensor([[7]]))[0].item() == 0


@pytest.mark.feature("cond", fidelity="exact")
def test_cond_when_it_writes_in_place_then_nothing_outside_changes():
    def forward(model, x):
        result = poptorch.cond(x.sum() < 0, lambda a: a.add_(1), [x], lambda: x.mul_(2), [])
        return result[0], x

    for value, expected in ((-X.abs(), -X.abs() + 1), (X.abs(), 2 * X.abs())):
        result, x = infer(forward, value)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(x, value)


@pytest.mark.feature("cond", fidelity="exact")
def test_cond_when_nested_in_a_loop_then_each_iteration_decides():
    def forward(model, x):
        def body(y):
            return poptorch.cond(
                y.sum() > 10,
                lambda a: poptorch.for_loop(2, lambda z: z - 4, [a]),
                [y],
                lambda: y * 2,
                [],
            )

        return poptorch.for_loop(6, body, [x])

    expected = 1.0
    for _ in range(6):
        expected = expected - 8 if expected > 10 else expected * 2
    assert infer(forward, torch.tensor([1.0]))[0].item() == expected


@pytest.mark.feature("cond", fidelity="exact")
def test_cond_when_called_outside_a_trace_then_it_is_a_branch():
    then = poptorch.cond(torch.tensor(True), lambda: X, [], lambda: -X, [])
    otherwise = poptorch.cond(torch.tensor(False), lambda: X, [], lambda a: (-a,), [X])
    assert isinstance(then, list) and torch.equal(then[0], X)
    assert isinstance(otherwise, list) and torch.equal(otherwise[0], -X)


@pytest.mark.feature("cond", fidelity="exact")
@pytest.mark.parametrize("inputs", [X, (X,), [1]], ids=["tensor", "tuple", "no tensor"])
def test_cond_when_inputs_are_wrong_then_value_error(inputs):
    with pytest.raises(ValueError, match="poptorch.cond expects then_inps and else_inps tensors"):
        poptorch.cond(torch.tensor(True), lambda: X, [], lambda a: a, inputs)


@pytest.mark.feature("cond", fidelity="exact")
@pytest.mark.parametrize(
    "other",
    [lambda a: (a, a), lambda a: a[:, 1:], lambda a: a.half()],
    ids=["count", "shape", "type"],
)
def test_cond_when_bodies_disagree_then_error(other):
    with pytest.raises(poptorch.Error, match="outputs of then_body"):
        infer(lambda m, x: poptorch.cond(x.sum() > 0, lambda a: a, [x], other, [x]), X)


@pytest.mark.feature("cond", fidelity="exact")
def test_cond_when_condition_is_no_tensor_then_error():
    with pytest.raises(poptorch.Error, match="boolean tensor of one element, not True"):
        infer(lambda m, x: poptorch.cond(True, lambda: x, [], lambda: -x, []), X)


@pytest.mark.feature("for_loop", fidelity="exact")
@pytest.mark.parametrize("count", [2.0, 2.5, "2", None, [2], 2**63], ids=str)
def test_loop_when_count_is_no_integer_then_refused(count) -> None:
    with pytest.raises(poptorch.Error, match=r"given the count .* takes an integer of at most 63"):
        infer(lambda _, x: poptorch.for_loop(count, lambda y: [y + 1], [x]), X)


@pytest.mark.feature("for_loop", fidelity="exact")
@pytest.mark.parametrize("count", [True, np.int64(1), torch.tensor(1)], ids=repr)
def test_loop_when_count_means_an_integer_then_taken(count) -> None:
    (result,) = infer(lambda _, x: poptorch.for_loop(count, lambda y: [y + 1], [x]), X)
    assert torch.equal(result, X + 1)
