"""Arguments and results of single instructions, compared with the same call in eager PyTorch."""

import pytest
import torch
from hand_built import ALL, Reg, add, call, executor, one_segment

from poptorch_emu import _C

X = torch.arange(6.0).reshape(2, 3)
Y = torch.tensor([[1.0, -1.0, 2.0], [0.5, 3.0, -2.0]])


@pytest.mark.parametrize(
    ("operator", "inputs", "args", "kwargs", "expected"),
    [
        pytest.param("add.Tensor", [X, Y], [Reg(0), Reg(1)], {}, X + Y, id="two-registers"),
        pytest.param(
            "add.Tensor", [X, Y], [Reg(0), Reg(1)], {"alpha": 3}, X + 3 * Y, id="keyword-scalar"
        ),
        pytest.param(
            "add.Tensor", [X, Y], [Reg(0)], {"other": Reg(1)}, X + Y, id="keyword-register"
        ),
        pytest.param("sub.Tensor", [X], [Reg(0), Y], {}, X - Y, id="constant-tensor"),
        pytest.param("sum.dim_IntList", [X], [Reg(0), [0]], {}, X.sum(0), id="int-list"),
        pytest.param(
            "sum.dim_IntList",
            [X],
            [Reg(0), None],
            {"keepdim": True, "dtype": torch.float64},
            X.double().sum((0, 1), keepdim=True),
            id="none-bool-and-dtype",
        ),
        pytest.param("reshape", [X], [Reg(0), (3, -1)], {}, X.reshape(3, 2), id="int-tuple"),
        pytest.param("leaky_relu", [Y], [Reg(0), 0.1], {}, torch.where(Y > 0, Y, Y * 0.1),
                     id="float"),
        pytest.param(
            "div.Tensor_mode", [X, Y], [Reg(0), Reg(1)], {"rounding_mode": "floor"},
            torch.floor(X / Y), id="string",
        ),
        pytest.param(
            "full", [X], [[2, 2], 7], {"dtype": torch.int32, "device": torch.device("cpu")},
            torch.full((2, 2), 7, dtype=torch.int32), id="device",
        ),
        pytest.param(
            "clone", [X], [Reg(0)], {"memory_format": torch.contiguous_format}, X,
            id="memory-format",
        ),
        pytest.param(
            "zeros", [X], [[2]], {"layout": torch.strided}, torch.zeros(2), id="layout"
        ),
        pytest.param(
            "cat", [X, Y], [[Reg(0), Reg(1)], 1], {}, torch.hstack([X, Y]), id="tensor-list"
        ),
        pytest.param(
            "cat", [X], [[X, Y]], {}, torch.vstack([X, Y]), id="list-of-constants"
        ),
        pytest.param(
            "index.Tensor", [X, torch.tensor([2, 0])], [Reg(0), [None, Reg(1)]], {},
            torch.stack([X[:, 2], X[:, 0]], 1), id="list-with-none",
        ),
        pytest.param(
            "index.Tensor", [X, torch.tensor([1])], [Reg(0), [Reg(1)]], {}, X[1:],
            id="optional-list-without-none",
        ),
    ],
)  # fmt: skip
def test_instruction_then_gives_what_pytorch_gives(operator, inputs, args, kwargs, expected):
    (result,) = call(operator, inputs, args, **kwargs)
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("tensor", "number", "dtype"),
    [
        (torch.ones(2, dtype=torch.float16), 0.5, torch.float16),
        (torch.ones(2, dtype=torch.int32), 2, torch.int32),
        (torch.ones(2, dtype=torch.int32), 0.5, torch.float32),
        (torch.ones(2, dtype=torch.bool), 2, torch.int64),
    ],
    ids=["half-float", "int32-int", "int32-float", "bool-int"],
)
def test_number_beside_a_tensor_then_it_is_wrapped(tensor, number, dtype):
    (result,) = call("mul.Tensor", [tensor], [Reg(0), number])
    assert result.dtype == dtype
    assert result.tolist() == [number, number]


def test_operator_that_returns_a_list_then_it_spreads_over_the_registers():
    results = call("split.Tensor", [X], [Reg(0), 2, 1], num_outputs=2)
    assert [r.tolist() for r in results] == [[[0.0, 1.0], [3.0, 4.0]], [[2.0], [5.0]]]


def test_operator_that_returns_a_tuple_then_each_result_has_a_register():
    values, indices = call("max.dim", [Y], [Reg(0), 1], num_outputs=2)
    assert (values.tolist(), indices.tolist()) == ([2.0, 3.0], [2, 1])


@pytest.mark.parametrize(
    ("operator", "args"), [("max.dim", [Reg(0), 1]), ("split.Tensor", [Reg(0), 1])],
    ids=["tuple", "list"],
)  # fmt: skip
def test_result_without_register_then_it_is_dropped(operator, args):
    program, segment = one_segment()
    add(program, segment, operator, args, [-1, 1])
    program.store_output(segment, 1, ALL, 1)
    y = Y[:, :2].T.contiguous()  # Two rows, so that both operators have two results.
    (result,) = executor(program).run([y], 1)
    expected = y.max(1).indices if operator == "max.dim" else y[1:]
    assert torch.equal(result, expected)


def test_register_that_dies_then_its_place_can_be_written_again():
    program, segment = one_segment()
    add(program, segment, "mul.Tensor", [Reg(0), 3.0], [1], dies=[0])
    add(program, segment, "add.Tensor", [Reg(1), 1.0], [0], dies=[1])
    add(program, segment, "neg", [Reg(0)], [0], dies=[0])
    program.store_output(segment, 0, ALL, 1)
    (result,) = executor(program).run([X], 1)
    assert torch.equal(result, -(3 * X + 1))


def test_instruction_that_lacks_an_argument_then_error_names_it():
    program, segment = one_segment()
    with pytest.raises(Exception, match="'sum_of_two' gives no value to argument 'other'"):
        add(program, segment, "add.Tensor", [Reg(0)], [1], debug=_C.Debug("sum_of_two"))


def test_operator_that_does_not_exist_then_error_names_it():
    program, segment = one_segment()
    with pytest.raises(RuntimeError, match="no_such_operator"):
        add(program, segment, "no_such_operator", [Reg(0)], [1])


def test_unknown_keyword_then_it_is_refused():
    program, segment = one_segment()
    with pytest.raises(Exception, match="alhpa"):
        add(program, segment, "add.Tensor", [Reg(0), Reg(0)], [1], alhpa=2)


def test_too_many_arguments_then_they_are_refused():
    program, segment = one_segment()
    with pytest.raises(Exception, match="neg"):
        add(program, segment, "neg", [Reg(0), Reg(0)], [1])


def test_list_of_register_and_constant_then_it_is_refused():
    program, segment = one_segment()
    with pytest.raises(Exception, match="cat"):
        add(program, segment, "cat", [[Reg(0), X]], [1])
