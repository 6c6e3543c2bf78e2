"""Tensors in containers that forward returns: returned, or refused alike (semantics.md §13.3)."""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import types
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.executor.args_parser import flattenTensorStructure

pytestmark = pytest.mark.feature("Containers as outputs", fidelity="exact")

X = torch.tensor([1.0, 2.0])


@dataclasses.dataclass
class Data:
    value: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenData:
    value: torch.Tensor


class Plain:
    def __init__(self, value) -> None:
        self.value = value


class Slots:
    __slots__ = ("value",)

    def __init__(self, value) -> None:
        self.value = value


class Mapping(collections.abc.Mapping):
    def __init__(self, data) -> None:
        self._data = data

    def __getitem__(self, key):
        return self._data[key]

    def __iter__(self):
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Named(dict):
    """A container with another tensor as an attribute, which a copy would not have."""


class Measured(list):
    """A container that cannot be created from its items alone."""

    def __init__(self, items, unit) -> None:
        super().__init__(items)
        self.unit = unit


class Output(collections.OrderedDict):
    """A dictionary whose items are also attributes, like the outputs of Transformers."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__.update(self)


def with_attribute(value):
    named = Named(a=value)
    named.loss = value
    return named


def object_array(value):
    made = np.empty(1, dtype=object)
    made[0] = value
    return made


def generator(value):
    yield value


REFUSED = {
    "values": lambda v: {"a": v}.values(),
    "items": lambda v: {"a": v}.items(),
    "keys": lambda v: {v: "a"}.keys(),
    "key": lambda v: {v: "a"},
    "nested key": lambda v: {("a", v): 1},
    "reversed values": lambda v: reversed({"a": v}.values()),
    "ordered values": lambda v: collections.OrderedDict(a=v).values(),
    "set": lambda v: {v},
    "frozenset": lambda v: frozenset([v]),
    "set of tuples": lambda v: {(v, 1)},
    "generator": generator,
    "expression": lambda v: (each for each in [v]),
    "zip": lambda v: zip([v]),
    "map": lambda v: map(torch.neg, [v]),
    "filter": lambda v: filter(None, [v]),
    "enumerate": lambda v: enumerate([v]),
    "reversed": lambda v: reversed([v]),
    "chain": lambda v: itertools.chain([v]),
    "empty iterator": lambda v: iter([]),
    "list iterator": lambda v: iter([v]),
    "object with a set": lambda v: Plain({v}),
    "proxy": lambda v: types.MappingProxyType({"a": v}),
    "partial": lambda v: functools.partial(torch.add, v),
    "closure": lambda v: lambda: v,
    "default": lambda v: lambda value=v: value,
    "method": lambda v: Plain(v).__init__,
    "method of a tensor": lambda v: v.sum,
    "slice": lambda v: slice(v),
    "object array": object_array,
    "context": contextlib.nullcontext,
    "attribute of a dict": with_attribute,
    "list of another form": lambda v: Measured([v], "m"),
    "constant in a set": lambda v: {torch.ones(2).to("ipu")},
    "parameter in a set": lambda v: {torch.nn.Parameter(v)},
}


def infer(pack) -> object:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return pack(x + self.weight)

    options = poptorch.Options().showCompilationProgressBar(False)
    return poptorch.inferenceModel(Model(), options)(X)


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [1, {"b": v}]], ids=["alone", "nested"])
@pytest.mark.parametrize("pack", REFUSED.values(), ids=REFUSED)
def test_tensor_in_what_is_not_looked_into_then_refused_with_its_place(pack, wrap) -> None:
    with pytest.raises(poptorch.Error, match="forward returns a value of type") as error:
        infer(lambda value: wrap(pack(value)))
    assert "registerCustomArgParser" in str(error.value)
    is_nested = isinstance(wrap(0), list)
    assert ("(at [1]['b']" in str(error.value)) == is_nested


GIVEN = {
    "list": lambda v: [v, 1],
    "tuple": lambda v: (v, 1.5),
    "dict": lambda v: {"a": v, 2: None},
    "ordered": lambda v: collections.OrderedDict(a=v),
    "default": lambda v: collections.defaultdict(list, a=v),
    "counter": lambda v: collections.Counter({"a": v}),
    "named tuple": lambda v: Pair(v, v * 2),
    "output": lambda v: Output(a=v, b=(v,)),
    "result of PyTorch": lambda v: torch.aminmax(v, dim=0),
    "nested": lambda v: [Pair(v, {"a": (v,)}), [[v]]],
    "deque": lambda v: collections.deque([v]),
    "dataclass": Data,
    "dataclass with slots": FrozenData,
    "object": Plain,
    "object with slots": Slots,
    "object in an object": lambda v: Plain(Slots(v)),
    "mapping": lambda v: Mapping({"a": v}),
    "user dict": lambda v: collections.UserDict(a=v),
    "user list": lambda v: collections.UserList([v]),
    "chain map": lambda v: collections.ChainMap({"a": v}),
    "namespace": lambda v: types.SimpleNamespace(a=v),
    "distribution": lambda v: torch.distributions.Independent(torch.distributions.Normal(v, 1), 1),
}


@pytest.mark.parametrize("pack", GIVEN.values(), ids=GIVEN)
def test_tensor_in_a_container_that_is_rebuilt_then_given_back(pack) -> None:
    result, expected = infer(pack), pack(X + 1)
    assert type(result) is type(expected)
    torch.testing.assert_close(flattenTensorStructure(result), flattenTensorStructure(expected))
    if isinstance(expected, Output):
        assert torch.equal(result.a, expected.a)


class Colour(enum.Enum):
    RED = 1


BESIDE = {
    "nothing": lambda v: None,
    "set": lambda v: {1, "a"},
    "enumeration": lambda v: Colour.RED,
    "function": lambda v: test_tensor_in_a_container_that_is_rebuilt_then_given_back,
    "built-in": lambda v: len,
    "type": lambda v: Pair,
    "array": lambda v: np.arange(3),
    "bytes": lambda v: array.array("b", [1]),
    "shape": lambda v: v.shape,
    "module": lambda v: MODULE,
    "object": lambda v: OBJECT,
    "reference": lambda v: REFERENCE,
    "dtype": lambda v: v.dtype,
}
MODULE, OBJECT = nn.Linear(1, 1), Plain([{1: "a"}])
OBJECT.itself = OBJECT
REFERENCE = weakref.ref(OBJECT)


@pytest.mark.parametrize("make", BESIDE.values(), ids=BESIDE)
def test_value_without_tensors_of_the_trace_then_returned_as_traced(make) -> None:
    result, beside = infer(lambda value: (value, make(value)))
    assert torch.equal(result, X + 1)
    expected = make(X)
    assert beside is expected or np.all(beside == expected)


def test_parser_for_a_type_then_its_tensors_are_given_back() -> None:
    class Parser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct):
            yield struct.value

        def reconstruct(self, original_structure, tensor_iterator):
            return Slots(next(tensor_iterator))

    poptorch.registerCustomArgParser(Slots, Parser())
    try:
        assert torch.equal(infer(lambda value: {"a": Slots(value)})["a"].value, X + 1)
    finally:
        poptorch.registerCustomArgParser(Slots, None)
