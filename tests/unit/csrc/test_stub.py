"""The hand-written stub names exactly what the C++ module offers."""

import ast
import re
from pathlib import Path

import pytest

import poptorch_emu
from poptorch_emu import _C

STUB = ast.parse((Path(poptorch_emu.__file__).parent / "_C.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
FUNCTIONS = {node.name for node in STUB.body if isinstance(node, ast.FunctionDef)}


def public(names):
    return {name for name in names if not name.startswith("_")}


def members(name):
    """Returns the members of a class of the stub, with those of its private base class."""
    bases = [member for base in CLASSES[name].bases for member in members(base.id)]
    return [*CLASSES[name].body, *bases]


def methods(name):
    return {node.name: node for node in members(name) if isinstance(node, ast.FunctionDef)}


def num_documented_arguments(function):
    """Counts the arguments in the signature that pybind11 writes into the docstring."""
    signature = function.__doc__.splitlines()[0].rsplit(" -> ", 1)[0]
    return len(re.findall(r"\b\w+: ", signature))


def test_stub_then_has_the_public_names_of_the_module():
    assert public(CLASSES.keys()) | FUNCTIONS == public(dir(_C))


@pytest.mark.parametrize("name", sorted(public(CLASSES)))
def test_stub_of_a_class_then_has_its_public_names(name):
    fields = {
        node.target.id for node in members(name) if isinstance(node, ast.AnnAssign)
    } | methods(name).keys()
    assert public(fields) == public(dir(getattr(_C, name)))


@pytest.mark.parametrize(
    ("class_name", "method"),
    [
        (class_name, method)
        for class_name in ("Program", "Executor", "Debug", "Register")
        for method in methods(class_name)
    ],
)
def test_stub_of_a_method_then_has_its_number_of_arguments(class_name, method):
    arguments = methods(class_name)[method].args
    bound = getattr(getattr(_C, class_name), method)
    assert len(arguments.posonlyargs) + len(arguments.args) == num_documented_arguments(bound)
