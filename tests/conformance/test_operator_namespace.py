"""The operators `torch.ops.poptorch.*`, in plain PyTorch and in a trace: api.md section 21."""

from __future__ import annotations

import pytest
import torch
from support.flow_models import FunctionModel, infer, quiet_options, train_weight

import poptorch_emu as poptorch

OPERATORS = torch.ops.poptorch
X = torch.arange(24.0).reshape(2, 12)
START = torch.tensor([4])
pytestmark = pytest.mark.feature("torch.ops.poptorch", fidelity="exact")

EXPECTED = {
    "nop": (lambda x, t: OPERATORS.nop(x), X),
    "internal_cast": (lambda x, t: OPERATORS.internal_cast(x, "float16") * 2, X.half() * 2),
    "internal_cast as ONNX has it": (lambda x, t: OPERATORS.internal_cast(x, "INT32"), X.int()),
    "dynamic_slice": (lambda x, t: OPERATORS.dynamic_slice(x, 1, t, 4, 2), X[:, 4:8:2]),
    "dynamic_update": (
        lambda x, t: OPERATORS.dynamic_update(x, x[:, :2], 1, t, 2),
        torch.cat([X[:, :4], X[:, :2], X[:, 6:]], 1),
    ),
    "recomputation_checkpoint": (lambda x, t: OPERATORS.recomputation_checkpoint(x) + 1, X + 1),
    "set_available_memory": (lambda x, t: OPERATORS.set_available_memory(x * 2, 0.2), X * 2),
    "identity_loss": (lambda x, t: OPERATORS.identity_loss(x, "mean"), X.mean()),
    "ipu_print_tensor": (lambda x, t: OPERATORS.ipu_print_tensor(x), X),
    "set_overlap": (
        lambda x, t: OPERATORS.set_overlap_for_output(
            OPERATORS.set_overlap_for_input(x, "no_overlap") + 1, "no_overlap"
        ),
        X + 1,
    ),
    "fps": (lambda x, t: OPERATORS.fps(x.t(), [0, 12], 0.25), torch.tensor([0, 11, 5]).int()),
    "nearest": (
        lambda x, t: OPERATORS.nearest(x[0], x[0] + 2.1),
        torch.tensor([*[0] * 3, *range(1, 10)]).int(),
    ),
    "nearest_batch_list": (
        lambda x, t: OPERATORS.nearest_batch_list(x, x.flip(0), [0, 1], [0, 1]),
        torch.tensor([0, 1]).int(),
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_operator_when_called_in_a_trace_then_does_what_its_function_does(name) -> None:
    function, expected = EXPECTED[name]
    torch.testing.assert_close(infer(lambda model, x, t: function(x, t), X, START), expected)


@pytest.mark.parametrize("name", EXPECTED)
def test_operator_when_called_outside_a_trace_then_is_plain_pytorch(name) -> None:
    function, expected = EXPECTED[name]
    torch.testing.assert_close(
        function(X, START), expected, check_dtype="nearest" not in name and name != "fps"
    )


def test_decoder_when_called_then_finds_the_best_path() -> None:
    scores = torch.full((3, 1, 3), -9.0)
    for time, label in enumerate((1, 0, 2)):
        scores[time, 0, label] = 0
    result = infer(
        lambda model, x, n: OPERATORS.ctc_beam_search_decoder(x, n, beam_width=5),
        scores.log_softmax(-1),
        torch.tensor([3]),
    )
    assert [value.tolist() for value in result[1:]] == [[[2]], [[[1, 2, 0]]]]


def test_operators_when_trained_then_gradients_pass(capfd) -> None:
    def forward(model, x):
        value = OPERATORS.recomputation_checkpoint(OPERATORS.nop(model.weight * x))
        value = OPERATORS.internal_cast(value, "float32")
        return OPERATORS.identity_loss(OPERATORS.ipu_print_tensor(value, "value"), "sum")

    gradient = train_weight(forward, torch.tensor([1.0, 2.0, 3.0]))
    assert gradient.tolist() == [1, 2, 3]
    assert "value_gradient: (1.000, 1.000, 1.000)" in capfd.readouterr().err


def compiled_scopes(forward) -> list[str]:
    executor = poptorch.inferenceModel(FunctionModel(forward), quiet_options())
    executor.compile(X)
    return [node.meta["record"].scope for node in executor._executable.graph.operations]


def test_name_scopes_when_pushed_then_operations_carry_them_until_popped() -> None:
    def forward(model, x):
        OPERATORS.push_name_scope("outer")
        x = x + 1
        OPERATORS.push_name_scope("inner")
        x = x * 2
        OPERATORS.pop_name_scope()
        OPERATORS.pop_name_scope()
        return x - 3

    assert compiled_scopes(forward) == ["outer", "outer/inner", ""]


def test_name_scope_when_never_popped_then_the_next_model_is_free_of_it() -> None:
    def forward(model, x):
        OPERATORS.push_name_scope("left open")
        return x + 1

    assert compiled_scopes(forward) == ["left open"]
    assert compiled_scopes(lambda model, x: x + 1) == [""]


def test_name_scope_when_popped_too_often_then_error() -> None:
    with pytest.raises(poptorch.Error, match="more often than push_name_scope"):
        OPERATORS.pop_name_scope()


def test_cast_when_type_is_unknown_then_error() -> None:
    with pytest.raises(poptorch.Error, match="cannot convert to 'complex64'; choose one of bool"):
        OPERATORS.internal_cast(X, "complex64")
