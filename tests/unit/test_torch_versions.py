"""Private names of PyTorch are in `torch_versions` and nowhere else, and each of them is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from poptorch_emu import torch_versions

PACKAGE = Path(torch_versions.__file__).parent
HERE = PACKAGE / "torch_versions.py"
# Exported programs have a copy of that file, which imports nothing but PyTorch.
EXPORTED = [
    f"export/pipeline_schedules.py: torch.distributed.pipelining.{name}"
    for name in (
        "microbatch._Replicate",
        "schedules._Action",
        "schedules._PipelineScheduleRuntime",
    )
]
# Private names that Python, tqdm and PopTorch define.
OF_OTHERS = {"_DistributedOptions", "_exit", "_fields", "_getframe", "_instances", "_reconstructor"}


# The nodes of a file; the first one is the tree itself.
Nodes = tuple[ast.AST, ...]


@cache
def sources() -> dict[Path, Nodes]:
    return {path: tuple(ast.walk(ast.parse(path.read_text()))) for path in PACKAGE.rglob("*.py")}


def statements(path: Path) -> list[ast.stmt]:
    """Returns the statements of a file that are in no other statement."""
    tree = sources()[path][0]
    assert isinstance(tree, ast.Module)
    return tree.body


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def dotted(node: ast.AST) -> list[str]:
    """Returns the parts of `a.b.c`, or nothing for another expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def names_of_torch(nodes: Nodes) -> Iterator[list[str]]:
    """Yields the names below `torch` that a file imports or reads."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ([*node.module.split("."), alias.name] for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield dotted(node)


def test_private_names_of_torch_then_only_in_their_file() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}: {'.'.join(name)}"
        for path, nodes in sources().items()
        for name in names_of_torch(nodes)
        if name[:1] == ["torch"] and any(map(is_private, name)) and name[1] != "ops"
    }
    assert {name for name in found if not name.startswith(HERE.name)} == set(EXPORTED)


def test_names_in_their_file_then_each_is_used() -> None:
    own = {
        target.id
        for node in statements(HERE)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    own |= {node.name for node in statements(HERE) if isinstance(node, ast.FunctionDef)}
    used = {
        alias.name
        for nodes in sources().values()
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "poptorch_emu.torch_versions"
        for alias in node.names
    }
    assert own - used == {"ATTRIBUTES", "OPERATORS"}


@cache
def own_attributes(path: Path) -> set[str]:
    """Returns the attributes and methods of the classes of a file."""
    found = set()
    for node in sources()[path]:
        if isinstance(node, ast.Attribute) and dotted(node)[:1] in (["self"], ["cls"]):
            found.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            names = (name for each in node.body for name in ast.walk(each))
            found |= {name.id for name in names if isinstance(name, ast.Name)}
            found |= {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def patched_attributes() -> set[str]:
    """Returns the names that `patched(holder, name=value)` replaces for a time."""
    return {
        keyword.arg
        for path, nodes in sources().items()
        if PACKAGE / "keras" not in path.parents
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "patched"
        for keyword in node.keywords
        if keyword.arg is not None and is_private(keyword.arg)
    }


def private_attributes() -> set[str]:
    """Returns private attributes that are read or replaced in objects of other files' classes."""
    return (
        patched_attributes()
        | {
            node.attr
            for path, nodes in sources().items()
            if path != HERE and PACKAGE / "keras" not in path.parents
            for node in nodes
            if isinstance(node, ast.Attribute)
            and is_private(node.attr)
            and dotted(node)[:1] not in (["self"], ["cls"], ["torch"], ["aten"])
            and node.attr not in own_attributes(path)
        }
        - OF_OTHERS
    )


def test_private_attributes_of_objects_then_are_listed() -> None:
    found = private_attributes()
    ours = set().union(*map(own_attributes, sources()))
    ours -= patched_attributes()
    assert found - ours - torch_versions.ATTRIBUTES.keys() == set()
    assert torch_versions.ATTRIBUTES.keys() - found == set()


def private_operators() -> set[str]:
    names = [dotted(node) for nodes in sources().values() for node in nodes]
    found = {name[name.index("aten") + 1] for name in names if "aten" in name[:-1]}
    return set(filter(is_private, found))


def test_private_operators_then_are_listed() -> None:
    assert private_operators() == set(torch_versions.OPERATORS)


@pytest.mark.parametrize("name", sorted(torch_versions.OPERATORS))
def test_private_operator_then_this_pytorch_has_it(name: str) -> None:
    assert hasattr(torch.ops.aten, name)
