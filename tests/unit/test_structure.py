"""Tensors in containers: found in a fixed order, and replaced without other changes."""

import collections
import dataclasses
import sys
import types
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poptorch_emu import structure
from poptorch_emu.errors import Error
from poptorch_emu.executor import args_parser
from poptorch_emu.structure import Template, as_list, flatten_tensors, rebuild

pytestmark = pytest.mark.feature("ICustomArgParser", fidelity="exact")


class Pair(NamedTuple):
    left: object
    right: object


class TypedDict(dict):
    pass


class Graph:
    def __init__(self, x, edges, name):
        self.x, self.edges, self.name = x, edges, name


class BigGraph(Graph):
    pass


class GraphParser(structure.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.x
        yield struct.edges

    def reconstruct(self, original_structure, tensor_iterator):
        kind = type(original_structure)
        return kind(next(tensor_iterator), next(tensor_iterator), original_structure.name)


class FirstOnlyParser(structure.ICustomArgParser):
    """A parser that finds one tensor in any object."""

    def yieldTensors(self, struct):
        yield torch.tensor(99)

    def reconstruct(self, original_structure, tensor_iterator):
        return ("rebuilt", next(tensor_iterator))


@pytest.fixture(autouse=True)
def no_parsers(monkeypatch):
    monkeypatch.setattr(structure, "_parsers", {})


def numbers(tensors):
    return [int(tensor) for tensor in tensors]


def scalars(*values):
    return [torch.tensor(value) for value in values]


def test_flatten_tensors_of_nesting_then_depth_first_without_other_leaves():
    a, b, c, d = scalars(1, 2, 3, 4)
    nested = [a, {"y": (b, None, 3.5), "x": Pair(c, "text")}, d]
    assert numbers(flatten_tensors(nested)) == [1, 2, 3, 4]


def test_flatten_tensors_with_canonical_then_its_order_of_keys_counts():
    a, b, c = scalars(1, 2, 3)
    given = ({"x": a, "y": [b, {"p": c}]},)
    canonical = ({"y": [None, {"p": None}], "x": None},)
    assert numbers(flatten_tensors(given, canonical)) == [2, 3, 1]


@pytest.mark.parametrize(
    "container",
    [
        [torch.tensor(1), 2],
        (torch.tensor(1), None),
        Pair(torch.tensor(1), "b"),
        {"k": torch.tensor(1), "n": 2},
        collections.OrderedDict(z=torch.tensor(1), a=0),
        TypedDict(k=torch.tensor(1)),
        torch.Size([1, 2]),
        None,
        "text",
    ],
    ids=lambda value: type(value).__name__,
)
def test_rebuild_then_keeps_the_type_and_what_is_no_tensor(container):
    copy = rebuild(container, iter(scalars(1)))
    assert type(copy) is type(container)
    assert copy == container


def test_rebuild_then_takes_tensors_in_the_order_of_flatten():
    original = {"b": [torch.zeros(1), (torch.zeros(1),)], "a": torch.zeros(1)}
    copy = rebuild(original, iter(scalars(1, 2, 3)))
    assert numbers([copy["b"][0], copy["b"][1][0], copy["a"]]) == [1, 2, 3]
    assert list(copy) == ["b", "a"]


@pytest.mark.parametrize(
    "original",
    [
        (torch.zeros(1), torch.zeros(1)),
        [torch.zeros(1)],
        (),
        Pair(torch.zeros(1), torch.zeros(1)),
        (torch.zeros(1), 7),
        {"b": [torch.zeros(1)], "a": (torch.zeros(1), None)},
        torch.zeros(1),
    ],
    ids=repr,
)
def test_template_when_filled_again_then_rebuilds(original):
    template = Template(original)
    for first in (1, 11):
        tensors = scalars(*range(first, first + template.num_tensors))
        filled, expected = template.filled(tensors), rebuild(original, iter(tensors))
        assert type(filled) is type(expected)
        assert all(a is b for a, b in zip(flatten_tensors(filled), tensors, strict=True))


def test_template_when_a_parser_comes_later_then_asks_it():
    template = Template((torch.zeros(1), torch.zeros(1)))
    structure.register_parser(tuple, FirstOnlyParser())
    rebuilt, tensor = template.filled(scalars(1, 2))
    assert (rebuilt, int(tensor)) == ("rebuilt", 1)


def test_rebuild_with_filter_then_other_tensors_stay():
    kept = torch.tensor(1.0)
    copy = rebuild([kept, torch.tensor(2)], iter(scalars(7)), lambda t: not t.is_floating_point())
    assert copy[0] is kept
    assert int(copy[1]) == 7


def tree(depth=3):
    leaf = st.one_of(st.none(), st.integers(), st.just("tensor"))
    if depth == 0:
        return leaf
    child = tree(depth - 1)
    return st.one_of(
        leaf,
        st.lists(child, max_size=3),
        st.lists(child, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), child, max_size=3),
        st.builds(Pair, child, child),
    )


def plant(value, count):
    """Replaces each "tensor" by a tensor with the next number, independently of `structure`."""
    if value == "tensor":
        return torch.tensor(next(count))
    if isinstance(value, dict):
        return {key: plant(item, count) for key, item in value.items()}
    if isinstance(value, Pair):
        return Pair(plant(value.left, count), plant(value.right, count))
    if isinstance(value, (list, tuple)):
        return type(value)([plant(item, count) for item in value])
    return value


@given(tree())
def test_flatten_and_rebuild_on_any_nesting_then_are_inverse(shape):
    numbered = plant(shape, iter(range(10**6)))
    flat = flatten_tensors(numbered)
    assert numbers(flat) == list(range(len(flat)))
    assert rebuild(numbered, iter(flat)) == numbered


def test_parser_then_finds_and_replaces_tensors_of_its_type():
    graph = Graph(*scalars(1, 2), name="g")
    graph.cached = torch.tensor(3)
    assert numbers(flatten_tensors([graph])) == [1, 2, 3]
    args_parser.registerCustomArgParser(Graph, GraphParser())
    assert numbers(flatten_tensors([graph])) == [1, 2]
    copy = rebuild({"g": graph}, iter(scalars(3, 4)))["g"]
    assert (int(copy.x), int(copy.edges), copy.name) == (3, 4, "g")


def test_parser_look_up_then_exact_type_wins_over_base_and_first_base_over_second():
    by_base, by_type, late = GraphParser(), GraphParser(), GraphParser()
    args_parser.registerCustomArgParser(Graph, by_base)
    args_parser.registerCustomArgParser(object, late)
    graph = BigGraph(*scalars(1, 2), name="g")
    assert structure.find_parser(graph) is by_base
    args_parser.registerCustomArgParser(BigGraph, by_type)
    assert structure.find_parser(graph) is by_type


@pytest.mark.parametrize("base", [dict, list, tuple])
def test_parser_of_a_container_then_wins_over_its_usual_handling(base):
    args_parser.registerCustomArgParser(base, FirstOnlyParser())
    assert numbers(flatten_tensors(base())) == [99]
    assert rebuild(base(), iter([5])) == ("rebuilt", 5)


def test_register_then_replaces_and_none_removes():
    first, second = GraphParser(), GraphParser()
    args_parser.registerCustomArgParser(Graph, first)
    args_parser.registerCustomArgParser(Graph, second)
    assert structure.registered_parsers() == {Graph: second}
    args_parser.registerCustomArgParser(Graph, None)
    args_parser.registerCustomArgParser(Graph, None)
    assert structure.registered_parsers() == {}


@pytest.mark.parametrize("wrong", [GraphParser, object(), "parser"], ids=["class", "object", "str"])
def test_register_of_no_parser_then_raises(wrong):
    with pytest.raises(Error, match="arg_parser must inherit from ICustomArgParser"):
        args_parser.registerCustomArgParser(Graph, wrong)


def test_public_flatten_and_reconstruct_then_do_the_same_as_ours():
    a, b = scalars(1, 2)
    assert numbers(args_parser.flattenTensorStructure({"x": a, "y": b}, {"y": 0, "x": 0})) == [2, 1]
    assert args_parser.reconstructTensorStructure((a, None), [5]) == (5, None)
    assert args_parser.reconstructTensorStructure((a, b), [5], lambda t: int(t) == 2) == (a, 5)


def test_geometric_parsers_where_the_package_is_absent_then_nothing():
    args_parser.registerGeometricCustomArgParsers()
    assert structure.registered_parsers() == {}


@pytest.mark.parametrize("has_types", [True, False], ids=["with_types", "without_types"])
def test_geometric_parsers_where_the_package_is_there_then_its_types_are_imported(
    has_types, tmp_path, monkeypatch
):
    package = tmp_path / "poptorch_geometric"
    package.mkdir()
    (package / "__init__.py").write_text("")
    if has_types:
        (package / "types.py").write_text("import decimal\ndecimal.was_seen_by_test = True\n")
    import decimal

    monkeypatch.setattr(decimal, "was_seen_by_test", False, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    args_parser.registerGeometricCustomArgParsers()
    assert decimal.was_seen_by_test is has_types
    for name in ("poptorch_geometric", "poptorch_geometric.types"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("result", "expected"), [([1, 2], [1, 2]), ((1,), [1]), (3, [3]), ({"a": 1}, [{"a": 1}])]
)
def test_as_list_then_unpacks_lists_and_tuples_only(result, expected):
    assert as_list(result) == expected


class Store:
    """An object with a reference to its holder, like the storages of torch_geometric."""

    def __init__(self, parent, **values):
        self.parent, self.values = weakref.ref(parent), values


class Slotted:
    __slots__ = ("__hidden", "shown")

    def __init__(self, hidden, shown):
        self.__hidden, self.shown = hidden, shown

    def hidden(self):
        return self.__hidden


class Guarded:
    """An object that its own methods can neither create nor change."""

    def __new__(cls, value, _):
        return super().__new__(cls)

    def __init__(self, value, _):
        self.__dict__["value"] = value

    def __setattr__(self, name, value):
        raise AttributeError(name)


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: object
    kind: str = "k"


def linked():
    first, second = types.SimpleNamespace(x=torch.tensor(1)), types.SimpleNamespace()
    first.other, second.other, second.x = second, first, torch.tensor(2)
    return first


OBJECTS = {
    "attributes": lambda: Graph(*scalars(1, 2), name="g"),
    "slots": lambda: Slotted(*scalars(1, 2)),
    "frozen dataclass": lambda: Frozen({"a": scalars(1, 2)}),
    "no setattr": lambda: Guarded(scalars(1, 2), 0),
    "circle": linked,
    "deque": lambda: collections.deque(scalars(1, 2), maxlen=2),
    "user dict": lambda: collections.UserDict(a=torch.tensor(1), b=torch.tensor(2)),
    "distribution": lambda: torch.distributions.Normal(torch.tensor(1.0), torch.tensor(2.0)),
}


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_object_when_rebuilt_then_another_of_its_type_with_other_tensors(make):
    original = make()
    copy = rebuild([original], iter(scalars(3, 4)))[0]
    assert type(copy) is type(original) and copy is not original
    assert numbers(flatten_tensors(original)) == [1, 2]
    assert numbers(flatten_tensors(copy)) == [3, 4]
    assert getattr(copy, "maxlen", 2) == 2


def test_rebuild_of_a_circle_then_the_copies_refer_to_each_other():
    copy = rebuild(linked(), iter(scalars(3, 4)))
    assert copy.other.other is copy


def test_rebuild_of_an_object_that_its_parts_refer_to_then_parts_refer_to_the_copy():
    parent = Graph(None, None, "g")
    parent.store = Store(parent, x=torch.tensor(1))
    copy = rebuild(parent, iter(scalars(2)))
    assert copy.store is not parent.store and copy.store.parent() is copy
    assert int(copy.store.values["x"]) == 2


def test_object_that_occurs_twice_then_its_tensors_are_found_once_and_it_is_copied_once():
    graph = Frozen(torch.tensor(1))
    assert numbers(flatten_tensors([graph, (graph,)])) == [1]
    first, (second,) = rebuild([graph, (graph,)], iter(scalars(2)))
    assert first is second and int(first.value) == 2


def test_rebuild_then_objects_and_attributes_without_tensors_are_shared():
    names, plain = [], Frozen(1)
    copy = rebuild(Graph(torch.tensor(1), plain, names), iter(scalars(2)))
    assert copy.edges is plain and copy.name is names


def test_object_with_a_destructor_then_is_not_copied():
    class Owner(Graph):
        def __del__(self):
            pass

    assert flatten_tensors(Owner(*scalars(1, 2), name="g")) == []


def test_type_that_pytree_knows_then_its_functions_take_it_apart():
    class Opaque(set):
        pass

    pytree = torch.utils._pytree
    pytree.register_pytree_node(
        Opaque, lambda each: (list(each), "context"), lambda parts, _: Opaque(parts)
    )
    try:
        copy = rebuild(Opaque(scalars(1)), iter(scalars(2)))
        assert type(copy) is Opaque and numbers(copy) == [2]
    finally:
        pytree._deregister_pytree_node(Opaque)


def test_canonical_objects_then_decide_the_order_of_attributes():
    given, canonical = types.SimpleNamespace(), types.SimpleNamespace(a=None, b=None)
    given.b, given.a = scalars(2, 1)
    assert numbers(flatten_tensors([given], [canonical])) == [1, 2]


def test_snapshot_then_later_changes_of_lists_objects_and_arrays_are_not_seen():
    settings, array, tensor = types.SimpleNamespace(scale=1), np.zeros(1), torch.tensor(1)
    original = {"o": settings, "l": [1], "a": array, "t": tensor}
    kept = structure.snapshot(original)
    settings.scale, array[0] = 2, 3
    original["l"].append(2)
    assert (kept["o"].scale, kept["l"], kept["a"][0]) == (1, [1], 0)
    assert kept["t"] is tensor
