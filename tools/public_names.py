"""Every public name with its fidelity and the tests that use it, for docs/features.md.

The docstring contains the fidelity word in parentheses; a member without one has the word of its
class. A test uses a name if the name occurs in its code.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import poptorch_emu

_WORD = re.compile(r"\((exact|modelled|accepted|refused)\b")
# Fidelity words of names that cannot have a docstring of their own.
WORDS = {
    "__version__": "exact",
    "attributes_lists": "exact",
    "BlockId": "exact",
    "logger": "exact",
    "Average": "exact",
    "Sum": "exact",
}
_MODULES = ("optim", "profiling", "testing")
GROUPS = ("Training", "Precision", "Jit", "Distributed", "TensorLocations")
_NUM_SHOWN = 2


def names() -> dict[str, str]:
    """Returns the fidelity of each public name; the name is written as in `poptorch.<name>`.

    Raises:
        ValueError: a docstring has no fidelity word.
    """
    found = dict(_of_module(poptorch_emu, ""))
    for module in _MODULES:
        found |= _of_module(import_module(f"poptorch_emu.{module}"), f"{module}.")
    options = poptorch_emu.Options()
    for group in GROUPS:
        found |= of_class(type(getattr(options, group)), f"Options.{group}", "")
    silent = sorted(name for name, word in found.items() if not word)
    if silent:
        raise ValueError(f"No fidelity word in the docstrings of {', '.join(silent)}.")
    return found


def users(tests: Path) -> dict[str, list[str]]:
    """Returns the test files in which each identifier occurs, in alphabetical order."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(tests.rglob("test_*.py")):
        for identifier in set(filter(None, map(_identifier, nodes_of(path)))):
            found[identifier].append(path.relative_to(tests).as_posix())
    return found


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Returns all nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def table(fidelity_of: dict[str, str], files_of: dict[str, list[str]]) -> str:
    """Returns the table: one name on each line, in alphabetical order.

    Raises:
        ValueError: no test uses a name.
    """
    untested = [name for name in fidelity_of if not files_of.get(name.rpartition(".")[2])]
    if untested:
        raise ValueError(f"No test uses {', '.join(sorted(untested))}.")
    lines = ["| `poptorch.` | Fidelity | Used in `tests/` |", "|---|---|---|"]
    for name in sorted(fidelity_of, key=lambda name: (name.casefold(), name)):
        files = files_of[name.rpartition(".")[2]]
        rest = " and others" if len(files) > _NUM_SHOWN else ""
        lines.append(f"| {name} | {fidelity_of[name]} | {', '.join(files[:_NUM_SHOWN])}{rest} |")
    return "\n".join(lines)


def offered(module: ModuleType) -> list[str]:
    """Returns the public names of a module, in its own order."""
    own = [name for name in vars(module) if _is_own(module, name)]
    return [name for name in getattr(module, "__all__", own) if name[0] != "_" or name in WORDS]


def _of_module(module: ModuleType, prefix: str) -> Iterator[tuple[str, str]]:
    for name in offered(module):
        value = getattr(module, name)
        if inspect.isclass(value) and name not in WORDS:
            yield from of_class(value, prefix + name, "")
        elif not inspect.ismodule(value):
            yield prefix + name, WORDS.get(name) or word(value)


def _is_own(module: ModuleType, name: str) -> bool:
    value = vars(module)[name]
    is_ours = getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    return is_ours and (inspect.isclass(value) or inspect.isfunction(value))


def of_class(cls: type, name: str, default: str) -> Iterator[tuple[str, str]]:
    """Yields the fidelity of a class and of its members from this package, by name."""
    default = word(cls) or default
    yield name, default
    if issubclass(cls, enum.Enum):
        return
    for member in dir(cls):
        owner = next(base for base in cls.__mro__ if member in vars(base))
        if not member.startswith("_") and owner.__module__.startswith(poptorch_emu.__name__):
            yield f"{name}.{member}", word(inspect.getattr_static(cls, member)) or default


def word(value: Any) -> str:
    """Returns the fidelity word in the docstring of a value; "" if there is none."""
    found = _WORD.search(inspect.getdoc(value) or "")
    return found.group(1) if found else ""


def _identifier(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.FunctionDef):
        return node.name
    if isinstance(node, (ast.keyword, ast.alias)):
        return node.arg if isinstance(node, ast.keyword) else node.name
    # Tests over many names contain them as text.
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value if node.value.isidentifier() else None
    return None
