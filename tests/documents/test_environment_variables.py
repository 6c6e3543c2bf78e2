"""docs/environment.md lists each environment variable that the code reads, and no other."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "environment.md"
FILES = sorted((ROOT / "poptorch_emu").rglob("*.py"))
LISTED = re.compile(r"^\| ((?:`[A-Z0-9_]+`(?:, )?)+) \|", re.MULTILINE)
METHODS = ("get", "setdefault", "pop")


def is_environ(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def asked_for(node: ast.AST, helpers: dict[str, list[int]]) -> list[ast.expr]:
    """Returns the expressions of the names of variables that a node asks for."""
    if isinstance(node, ast.Subscript) and is_environ(node.value):
        return [node.slice]
    if isinstance(node, ast.Compare) and is_environ(node.comparators[0]):
        return [node.left]
    if not isinstance(node, ast.Call):
        return []
    function = node.func
    if isinstance(function, ast.Attribute) and is_environ(function.value):
        return node.args[:1] if function.attr in METHODS else []
    if isinstance(function, ast.Attribute) and function.attr == "getenv":
        return node.args[:1]
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return [node.args[index] for index in helpers.get(name, []) if index < len(node.args)]


class Names:
    """Values of names: constants of all modules, and loops over tuples of constants."""

    def __init__(self, trees: list[ast.Module], asking: list[ast.Module]) -> None:
        self.of: dict[str, set[str]] = {}
        for tree in trees:
            for node in tree.body:
                if isinstance(node, ast.Assign):
                    self._assign(node.targets[0], node.value)
        for tree in asking:
            for node in ast.walk(tree):
                if isinstance(node, ast.comprehension | ast.For) and isinstance(
                    node.iter, ast.Name
                ):
                    self._add(node.target, self.of.get(node.iter.id, set()))

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for each, part in zip(target.elts, value.elts, strict=True):
                self._assign(each, part)
        else:
            parts = value.elts if isinstance(value, ast.Tuple) else [value]
            found = {part.value for part in parts if isinstance(part, ast.Constant)}
            self._add(target, {text for text in found if isinstance(text, str)})

    def _add(self, target: ast.expr, values: set[str]) -> None:
        if isinstance(target, ast.Name) and values:
            self.of.setdefault(target.id, set()).update(values)

    def meant_by(self, node: ast.expr) -> set[str]:
        if isinstance(node, ast.Constant):
            return {node.value}
        return self.of.get(node.id, set()) if isinstance(node, ast.Name) else set()


def helpers_of(tree: ast.AST, known: dict[str, list[int]]) -> dict[str, list[int]]:
    """Returns functions that read a variable whose name is their argument, and its position."""
    found: dict[str, list[int]] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            arguments = [a.arg for a in function.args.args if a.arg not in ("self", "cls")]
            for node in ast.walk(function):
                for name in asked_for(node, known):
                    if isinstance(name, ast.Name) and name.id in arguments:
                        found.setdefault(function.name, []).append(arguments.index(name.id))
    return found


def variables_read(sources: list[str]) -> tuple[set[str], list[str]]:
    """Returns the variables that the sources read, and the expressions that are not understood."""
    trees = {source: ast.parse(source) for source in sources}
    helpers: dict[str, list[int]] = {}

    def asking() -> list[ast.Module]:
        words = ("environ", "getenv", *helpers)
        return [tree for source, tree in trees.items() if any(word in source for word in words)]

    for _ in range(2):
        for tree in asking():
            helpers.update(helpers_of(tree, helpers))
    names = Names([*trees.values()], asking())
    found, unknown = set(), []
    for tree in asking():
        arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        for node in ast.walk(tree):
            for asked in asked_for(node, helpers):
                meant = names.meant_by(asked)
                found |= {text for text in meant if re.fullmatch(r"[A-Z][A-Z0-9_]+", text)}
                if not meant and not (isinstance(asked, ast.Name) and asked.id in arguments):
                    unknown.append(ast.unparse(asked))
    return found, unknown


@pytest.fixture(scope="module")
def listed() -> list[str]:
    rows = LISTED.findall(PAGE.read_text(encoding="utf-8"))
    return [name for row in rows for name in re.findall(r"[A-Z0-9_]+", row)]


def test_variables_that_the_code_reads_then_the_page_lists_them_and_no_others(listed) -> None:
    found, unknown = variables_read([path.read_text(encoding="utf-8") for path in FILES])
    for path in (ROOT / "csrc").rglob("*.cpp"):
        found |= set(re.findall(r'getenv\("(\w+)"', path.read_text(encoding="utf-8")))
    # `poprun -x NAME` passes on a variable of the user's.
    assert set(unknown) <= {"name"}
    assert set(listed) - found == set()
    assert found - set(listed) == set()


def test_variables_of_the_page_then_each_is_listed_once(listed) -> None:
    assert sorted(listed) == sorted(set(listed))


def test_reader_when_variables_are_read_in_several_ways_then_finds_all() -> None:
    """Without this test, a reader that finds nothing would pass the test above."""
    source = """
import os
A, B = "A_1", "B_1"
MANY = ("C_1", "D_1")

def helper(name, default):
    return os.environ.get(name, default)

def read():
    os.environ[A], B in os.environ, helper("E_1", ""), os.getenv("F_1")
    any(helper(each, "") for each in MANY)
    os.environ.get(A + "x")
"""
    found, unknown = variables_read([source])
    assert found == {"A_1", "B_1", "C_1", "D_1", "E_1", "F_1"}
    assert unknown == ["A + 'x'"]
