"""What goes into a model and comes out of it (semantics.md §13, §14)."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.wrapped_functions import Pair, X, run, wrapped
from torch import nn

import poptorch_emu as poptorch


@pytest.mark.feature("Inputs", fidelity="exact")
def test_dict_input_when_keys_come_in_another_order_then_same_values_reach_the_model() -> None:
    executor = wrapped(lambda self, pair: pair["a"] - 2 * pair["b"])
    a, b = torch.tensor([10.0]), torch.tensor([1.0])
    assert executor({"a": a, "b": b}).item() == 8
    assert executor({"b": b, "a": a}).item() == 8
    assert executor(pair={"b": b, "a": a}).item() == 8


@pytest.mark.feature("Inputs", fidelity="exact")
def test_dicts_in_a_list_when_keys_come_in_another_order_then_same_values() -> None:
    executor = wrapped(lambda self, pairs: pairs[0]["a"] - 2 * pairs[0]["b"])
    a, b = torch.tensor([10.0]), torch.tensor([1.0])
    assert executor([{"a": a, "b": b}]).item() == 8
    assert executor([{"b": b, "a": a}]).item() == 8
    with pytest.raises(poptorch.Error, match="Keys mismatch for pairs"):
        executor([{"a": a, "c": b}])
    with pytest.raises(poptorch.Error, match="Length mismatch for pairs: expected 2 elements but"):
        executor([{"a": a, "c": b}, b])


@pytest.mark.feature("Inputs", fidelity="exact")
def test_keywords_when_named_in_another_order_then_same_values() -> None:
    executor = wrapped(lambda self, **named: named["a"] - 2 * named["b"])
    a, b = torch.tensor([10.0]), torch.tensor([1.0])
    assert executor(a=a, b=b).item() == 8
    assert executor(b=b, a=a).item() == 8
    with pytest.raises(
        poptorch.Error,
        match="Keys mismatch for named arguments: Unexpected arguments: c. Missing arguments: b.",
    ):
        executor(a=a, c=b)


@pytest.mark.feature("Inputs", fidelity="exact")
@pytest.mark.parametrize(
    ("value", "is_dict"),
    [({"a": X}, True), ([{"a": X}], True), (Pair(X, {"a": X}), True), (Pair(X, X), False)],
)
def test_dict_input_when_compiled_then_warns_of_partial_support(value, is_dict, caplog) -> None:
    executor = run(lambda self, x, y: y + 1, value, X)
    assert ("Dicts as inputs only have partial support" in caplog.text) == is_dict
    caplog.clear()
    executor(value, X)
    assert "partial support" not in caplog.text


# Compiled value, later value, beginning of the error (semantics.md §14).
DIFFERENCES = {
    "type": (
        (X, X),
        [X, X],
        "Type mismatch for x: expected <class 'tuple'> but got <class 'list'>.",
    ),
    "parameter": (
        X,
        nn.Parameter(X),
        f"Type mismatch for x: expected {torch.Tensor} but got {nn.Parameter}.",
    ),
    "length": ((X, X), (X,), "Length mismatch for x: expected 2 elements but got 1."),
    "list length": ([X, X], [X], "Length mismatch for x: expected 2 elements but got 1."),
    "keys": (
        {"a": X, "c": X},
        {"a": X, "b": X},
        "Keys mismatch for x: Unexpected arguments: b. Missing arguments: c.",
    ),
    "dtype": (
        X,
        X.half(),
        "Data type mismatch for x: expected torch.float32 but got torch.float16",
    ),
    "int dtype": (X.long(), X.int(), "Data type mismatch for x: expected torch.int64 but got"),
    "shape": (
        X,
        torch.ones(4),
        "Shape mismatch for x: expected torch.Size([2]) but got torch.Size([4]).",
    ),
    "in a tuple": ((X, X), (X, torch.ones(1)), "Shape mismatch for x[1]: expected torch.Size([2])"),
    "in a dict": ({"k": X}, {"k": X.half()}, "Data type mismatch for x[k]: expected torch.float32"),
    "number": (3, 4, "Value mismatch for x: expected 3 but got 4."),
    "string": ("a", "b", "Value mismatch for x: expected a but got b."),
    "list of numbers": ([1, 2], [1, 3], "Value mismatch for x: expected [1, 2] but got [1, 3]."),
    "array": (
        np.array([1, 2]),
        np.array([1, 3]),
        "Value mismatch for x: expected [1 2] but got [1 3].",
    ),
    "type of an array": (np.zeros(2), np.zeros(2, int), "Value mismatch for x: expected [0. 0.]"),
    "None": (None, 1, "Type mismatch for x: expected <class 'NoneType'> but got <class 'int'>."),
}


@pytest.mark.feature("Input validation", fidelity="exact")
@pytest.mark.parametrize(("old", "new", "phrase"), DIFFERENCES.values(), ids=DIFFERENCES.keys())
def test_input_that_differs_from_the_compiled_then_error(old, new, phrase) -> None:
    executor = run(lambda self, x, y: y + 1, old, X)
    with pytest.raises(poptorch.Error, match=re.escape(phrase)) as error:
        executor(new, X)
    assert "inputs passed at runtime don't match" in str(error.value)
    executor(old, X)


@pytest.mark.feature("Input validation", fidelity="exact")
@pytest.mark.parametrize(
    "make", [lambda: float("nan"), lambda: np.array([1.0, np.nan]), lambda: np.arange(3)]
)
def test_constant_input_when_it_is_an_equal_object_then_runs(make) -> None:
    executor = run(lambda self, x, y: y + 1, make(), X)
    assert torch.equal(executor(make(), X), X + 1)


class Incomparable:
    def __eq__(self, other):
        raise TypeError("no order of these")

    __hash__ = None


@pytest.mark.feature("Input validation", fidelity="exact")
def test_constant_input_when_it_cannot_be_compared_then_error_names_it() -> None:
    executor = run(lambda self, x, y: y + 1, Incomparable(), X)
    with pytest.raises(poptorch.Error, match="Value mismatch for x: two values of type Incompar"):
        executor(Incomparable(), X)


@pytest.mark.feature("Inputs", fidelity="exact")
def test_input_when_a_defaultdict_then_forward_gets_one() -> None:
    values = defaultdict(list, a=X)
    executor = run(lambda self, x: x["a"] + len(x["missing"]), values)
    assert torch.equal(executor(values), X)


@dataclass
class Unknown:
    value: object


class Holder:
    def __init__(self, value) -> None:
        self.values = {"first": [value]}


@pytest.mark.feature("Outputs", fidelity="exact")
@pytest.mark.parametrize(
    "make", [Unknown, Holder, lambda v: (each for each in [v]), lambda v: [1, {"a": Unknown(v)}]]
)
def test_output_when_an_unknown_type_holds_tensors_then_error_says_how_to_make_it_known(make):
    with pytest.raises(poptorch.Error, match="registerCustomArgParser"):
        run(lambda self, x: make(x + 1), X)


@pytest.mark.feature("Outputs", fidelity="exact")
def test_output_when_an_unknown_type_holds_no_tensor_then_is_returned_as_traced() -> None:
    output, kept = wrapped(lambda self, x: (x + 1, Unknown(3)))(X)
    assert torch.equal(output, X + 1) and kept == Unknown(3)


@pytest.mark.feature("Input validation", fidelity="exact")
def test_number_of_positional_arguments_when_it_differs_then_error() -> None:
    executor = run(lambda self, *values: sum(values), X, X)
    with pytest.raises(
        poptorch.Error,
        match="Number of positional arguments mismatch: expected 2 arguments but got 3.",
    ):
        executor(X, X, X)
    with pytest.raises(poptorch.Error, match=r"Shape mismatch for \*values\[1\]"):
        executor(X, torch.ones(1))


@pytest.mark.feature("Inputs", fidelity="exact")
@pytest.mark.parametrize(
    ("args", "kwargs", "error", "phrase"),
    [
        ((X, X, X), {}, AssertionError, "Too many arguments provided: expected .* \\(2\\) but got"),
        ((X,), {"z": X}, AssertionError, "z is not a valid parameter.Allowed values are"),
        ((X,), {"x": X}, AssertionError, "Parameter x was passed more than once"),
        ((), {}, poptorch.Error, "Mandatory parameter x missing"),
    ],
)
def test_arguments_that_do_not_bind_then_error(args, kwargs, error, phrase) -> None:
    with pytest.raises(error, match=phrase):
        wrapped(lambda self, x, y=None: x + 1)(*args, **kwargs)


@pytest.mark.feature("Inputs", fidelity="exact")
def test_input_with_requires_grad_then_warns_once_and_is_detached(caplog) -> None:
    x = torch.ones(2, requires_grad=True)
    executor = run(lambda self, x: x * 2, x)
    phrase = "Input tensor has requires_grad=True set. This tensor will be detached"
    assert caplog.text.count(phrase) == 1
    assert not executor(x).requires_grad
    assert caplog.text.count(phrase) == 1


@pytest.mark.feature("Inputs", fidelity="exact")
def test_input_that_is_not_contiguous_then_warns_once_in_the_life_of_the_executor(caplog) -> None:
    x = torch.arange(6.0).reshape(2, 3).t()
    executor = run(lambda self, x: x * 2, x)
    assert torch.equal(executor(x), x * 2)
    assert caplog.text.count("At least one input tensor is not contiguous") == 1


@pytest.mark.feature("Zero-size tensors", fidelity="exact")
def test_zero_size_tensor_then_accepted() -> None:
    out = wrapped(lambda self, x: torch.cat([x, x[:, :0]], dim=1))(torch.ones(2, 3))
    assert out.shape == (2, 3)
    assert wrapped(lambda self, x: x + 1)(torch.ones(2, 0)).shape == (2, 0)


@pytest.mark.feature("Outputs", fidelity="exact")
def test_output_on_the_cpu_then_warns_when_compiled_and_is_returned_as_it_is() -> None:
    constant = torch.tensor([7.0])
    executor = wrapped(lambda self, x: (x + 1, constant, torch.full((2,), 3.0, device="cpu")))
    with pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
        executor.compile(X)
    executor.options  # noqa: B018
    for _ in range(2):
        out, first, second = executor(X)
        assert out.tolist() == [2, 2] and second.tolist() == [3, 3]
        assert first is constant
        assert "backward" in vars(out) and "backward" not in vars(first)


@pytest.mark.feature("Outputs", fidelity="exact")
def test_outputs_without_tensors_then_returned_as_traced() -> None:
    executor = wrapped(lambda self, x: {"n": 3, "s": "text", "x": x + 1, "none": None})
    assert executor(X)["n"] == 3
    out = executor(X)
    assert (out["s"], out["none"]) == ("text", None) and out["x"].tolist() == [2, 2]
    assert wrapped(lambda self, x: None)(X) is None


@pytest.mark.feature("Outputs", fidelity="exact")
def test_model_without_device_work_then_returns_constants_and_counts_as_attached() -> None:
    executor = wrapped(lambda self, x: torch.ones(3, device="cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert executor(X).tolist() == [1, 1, 1]
    assert executor.isAttachedToDevice()
    executor.detachFromDevice()
    assert executor.isAttachedToDevice()
