"""Inputs and outputs of a model (semantics.md §13, §14)."""

from __future__ import annotations

import re
import warnings
from collections import UserDict, defaultdict
from dataclasses import dataclass
from functools import wraps

import numpy as np
import pytest
import torch
from support.wrapped_functions import Pair, X, run, wrapped
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.executor.args_parser import flattenTensorStructure


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
    with pytest.raises(poptorch.Error, match="Length mismatch for pairs: expected 1 elements but"):
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


class Incomparable(bytes):
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
class Record:
    value: object
    unit: str = "m"


class Holder:
    def __init__(self, value, scale=1) -> None:
        self.values, self.scale = {"first": [value]}, scale


@pytest.mark.feature("Outputs", fidelity="exact")
def test_output_when_an_object_holds_tensors_then_each_call_returns_another_object() -> None:
    executor = wrapped(lambda self, x: [Record(Holder(x + 1)), x.device])
    record, device = executor(X)
    later, _ = executor(X * 2)
    assert torch.equal(record.value.values["first"][0], X + 1)
    assert torch.equal(later.value.values["first"][0], X * 2 + 1)
    assert record.unit == "m" and record.value is not later.value


@pytest.mark.feature("Outputs", fidelity="exact")
def test_output_when_an_object_keeps_the_device_of_its_tensor_then_it_is_that_of_the_result():
    result = wrapped(lambda self, x: Record(x + 1, x.device))(X)
    assert result.unit == result.value.device == torch.device("cpu")


INPUTS = {
    "dataclass": Record,
    "object": Holder,
    "in a list": lambda x: [Holder(x)],
    "user dict": lambda x: UserDict(a=x),
    "circle": lambda x: circle(x),
}


def circle(x):
    holder = Holder(x)
    holder.itself = [holder]
    return holder


def tensor_of(structure):
    [tensor] = flattenTensorStructure(structure)
    return tensor


@pytest.mark.feature("Inputs", fidelity="exact")
@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
def test_object_as_input_when_another_comes_then_its_tensors_are_used(make) -> None:
    executor = wrapped(lambda self, structure: tensor_of(structure) + 1)
    for scale in (1, 2):
        assert torch.equal(executor(make(X * scale)), X * scale + 1)
    with pytest.raises(poptorch.Error, match="Shape mismatch for structure"):
        executor(make(torch.ones(4)))


@pytest.mark.feature("Inputs", fidelity="exact")
def test_object_as_input_when_it_gets_another_tensor_then_that_is_used() -> None:
    executor, holder = wrapped(lambda self, h: h.values["first"][0] * h.scale), Holder(X, 3)
    assert torch.equal(executor(holder), X * 3)
    holder.values["first"][0] = X + 1
    assert torch.equal(executor(holder), (X + 1) * 3)


@pytest.mark.feature("Input validation", fidelity="exact")
@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        (lambda h: setattr(h, "scale", 4), "Value mismatch for h.scale: expected 3 but got 4."),
        (lambda h: setattr(h, "new", 4), "Keys mismatch for h: Unexpected arguments: new."),
        (lambda h: h.values["first"].append(X), "Length mismatch for h.values[first]: expected 1"),
        (lambda h: h.values.update(first=[torch.ones(4)]), "Shape mismatch for h.values[first][0]"),
    ],
)
def test_same_object_as_input_when_it_was_changed_then_error_names_the_attribute(change, phrase):
    executor, holder = wrapped(lambda self, h: h.values["first"][0] * h.scale), Holder(X, 3)
    executor(holder)
    change(holder)
    with pytest.raises(poptorch.Error, match=re.escape(phrase)):
        executor(holder)


@pytest.mark.feature("Input validation", fidelity="exact")
def test_list_beside_a_tensor_when_a_number_in_it_changes_then_error() -> None:
    executor = run(lambda self, pair: pair[0] * pair[1], [X, 3.0])
    with pytest.raises(poptorch.Error, match=re.escape("Value mismatch for pair[1]: expected 3.0")):
        executor([X, 4.0])


@pytest.mark.feature("Input validation", fidelity="exact")
def test_objects_as_inputs_when_one_came_twice_and_now_are_two_then_error() -> None:
    executor, holder = wrapped(lambda self, a, b: tensor_of(a) - tensor_of(b)), Holder(X)
    assert torch.equal(executor(holder, holder), X * 0)
    with pytest.raises(poptorch.Error, match="the same object of type Holder was passed"):
        executor(Holder(X), Holder(X + 1))


@pytest.mark.feature("Input validation", fidelity="exact")
@pytest.mark.parametrize(
    "make", [lambda x: {x}, lambda x: {"a": x}.values(), lambda x: lambda: x, lambda x: Holder({x})]
)
def test_input_when_tensors_are_where_nobody_replaces_them_then_error(make) -> None:
    with pytest.raises(poptorch.Error, match="Invalid input: h.* holds tensors that no later call"):
        run(lambda self, h, x: x + 1, make(X), X)


@pytest.mark.feature("Inputs", fidelity="exact")
def test_call_by_name_when_a_decorator_fills_in_names_then_forward_gets_each_once() -> None:
    seen = []

    def forward(self, x=None, scale=2.0, *, shift=1.0, **rest):
        return x * scale + shift

    @wraps(forward)
    def decorated(self, *args, **kwargs):
        seen.append((len(args), set(kwargs)))
        return forward(self, *args, **{"shift": 3.0, **kwargs})

    for args, kwargs, factor, shift in (
        ((), {"x": X}, 2, 3),
        ((X,), {}, 2, 3),
        ((X,), {"scale": 4.0}, 4, 3),
        ((X, 4.0), {"shift": 5.0, "other": 1}, 4, 5),
    ):
        assert torch.equal(wrapped(decorated)(*args, **kwargs), X * factor + shift)
        assert seen.pop() == (len(args), set(kwargs))


@pytest.mark.feature("Inputs", fidelity="exact")
def test_default_that_is_a_tensor_then_is_an_input() -> None:
    executor = wrapped(lambda self, x, y=X, *, z=X: x + y + z)
    assert torch.equal(executor(X), 3 * X)
    assert torch.equal(executor(X, X + 1), 3 * X + 1)
    assert torch.equal(executor(y=X + 1, x=X), 3 * X + 1)


@pytest.mark.feature("Outputs", fidelity="exact")
def test_output_when_an_unknown_type_holds_no_tensor_then_is_returned_as_traced() -> None:
    output, kept = wrapped(lambda self, x: (x + 1, Record(3)))(X)
    assert torch.equal(output, X + 1) and kept == Record(3)


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
