"""Imports only go down, without circles, in Python and C++. Files and functions stay short.

Each test looks at all files and tells of each that breaks its rule.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "poptorch_emu"

FLOORS = {
    "errors": 0, "environment": 0, "enums": 0, "config": 0, "log": 0, "module_loading": 0,
    "near_names": 0, "printed": 0,
    "object_parts": 0, "structure": 0, "tensor_bytes": 0, "torch_versions": 0,
    "troubleshooting": 0, "turns": 0,
    "untrusted": 0,
    "version": 0,
    "distributed": 1, "ir": 1, "update.formulas": 1,
    "machine": 2,
    "trace": 3,
    "passes": 4, "update.recorded": 4,
    "schedule": 5,
    "segments": 6,
    "update.parts": 7,
    "plan": 8,
    "engine": 9,
    "compile": 10,
    "runtime": 11, "numbers": 11,
    "report": 12,
}  # fmt: skip
TOP = 13
CPP_FLOORS = {
    "common": 0,
    "program": 1,
    "numerics": 2,
    "ops": 3,
    "metadata": 3,
    "runtime": 3,
    "": 4,
}
# `trace/capture/tracer` lists autograd's graph, `stored/executable_file` turns programs into bytes,
# `data/slot_collate` stacks samples, `engine/product_kernels` asks for vectors.
ENGINE_USERS = {
    "engine/lower",
    "engine/micro_batch_path",
    "engine/output_stores",
    "engine/instruction",
    "engine/product_kernels",
    "compile/executable",
    "compile/stored/executable_file",
    "trace/capture/tracer",
    "runtime/peer_processes",
    "runtime/guards",
    "runtime/session",
    "data/slot_collate",
    "runtime/stream",
    "trace/fakes/metadata_rules",
    "testing",
    "__init__",
}

MAX_FUNCTION_LINES = 60

# Private names of PopTorch's own (api.md, usage census).
POPTORCHS_NAMES = {
    "_DistributedOptions",
    "_IExecutionStrategy",
    "_JitOptions",
    "_OverwriteContextManager",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
}
ENGINE = "_C"

# Private names that PyTorch and notebooks define, and the mark of wrapped user classes.
FOREIGN_ATTRIBUTES = {
    "_inheriting", "_schema", "_metadata", "_fields", "_repr_html_", "_poptorch_link",
}  # fmt: skip
CPP_FILES = sorted([*(ROOT / "csrc").rglob("*.h"), *(ROOT / "csrc").rglob("*.cpp")])


@cache
def tree_of(path: Path) -> ast.Module:
    """Returns the parsed file; many tests look at it."""
    return ast.parse(path.read_text())


def floor_of(module: str) -> int:
    """Returns the floor of `poptorch_emu.<module>`."""
    return FLOORS.get(room_of(module) or module, TOP)


@cache
def imports_of(path: Path) -> set[str]:
    """Returns the names below `poptorch_emu.` that a file imports, as `folder.module` paths."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "poptorch_emu":
                found.update(alias.name for alias in node.names)
            elif node.module.startswith("poptorch_emu."):
                inner = node.module.removeprefix("poptorch_emu.")
                for alias in node.names:
                    path_of_name = PACKAGE / inner.replace(".", "/") / alias.name
                    is_module = path_of_name.with_suffix(".py").exists() or path_of_name.is_dir()
                    found.add(f"{inner}.{alias.name}" if is_module else inner)
    return found


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return (
        str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".").removesuffix(".__init__")
    )


def faults(find: Callable[[Path], Collection[Any]], paths: Iterable[Path]) -> dict[str, Any]:
    """Returns the findings of `find` by file, without files that have none."""
    found = {str(path.relative_to(ROOT)): find(path) for path in paths}
    return {path: fault for path, fault in found.items() if fault}


def test_modules_when_read_then_import_only_their_floor_or_lower() -> None:
    def climbs(path: Path) -> list[str]:
        own = TOP if path == PACKAGE / "__init__.py" else floor_of(name_of(path))
        return [name for name in imports_of(path) if name != "_C" and floor_of(name) > own]

    assert faults(climbs, files()) == {}


def circle(graph: Mapping[str, Iterable[str]]) -> str:
    """Returns a circle of a graph as text, or "" if there is no circle."""
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> str:
        if name in trail:
            return " -> ".join((*trail[trail.index(name) :], name))
        if name in done:
            return ""
        done.add(name)
        return next(filter(None, (visit(o, (*trail, name)) for o in graph.get(name, ()))), "")

    return next(filter(None, (visit(name, ()) for name in graph)), "")


def room_of(module: str) -> str:
    """Returns the folder of a module that has a floor; "" for a module without its own room.

    That is the top-level folder, but for `update`, whose parts are on three floors.
    """
    first, _, rest = module.partition(".")
    if first == "update" and rest:
        first = f"{first}.{rest.split('.')[0]}"
    return first if (PACKAGE / first.replace(".", "/")).is_dir() else ""


def rooms() -> dict[str, set[str]]:
    """Returns each room with the others that its files import."""
    found: dict[str, set[str]] = {}
    for path in files():
        room = room_of(name_of(path))
        if room:
            others = {room_of(name) for name in imports_of(path)} - {room, ""}
            found.setdefault(room, set()).update(others)
    return found


def test_circles_when_there_are_some_then_one_is_found() -> None:
    assert circle({"a": ["b"], "b": ["c", "d"], "c": []}) == ""
    assert circle({"a": ["b"], "b": ["c"], "c": ["d", "b"]}) == "b -> c -> b"
    assert circle({"a": ["a"]}) == "a -> a"


def test_modules_when_followed_then_there_is_no_circle() -> None:
    assert circle({name_of(path): imports_of(path) for path in files()}) == ""


def test_rooms_when_followed_then_there_is_no_circle() -> None:
    assert len(rooms()) > 10
    assert circle(rooms()) == ""


def folder_of(module: str) -> str:
    """Returns the folder of a module, for example `trace.fakes`.

    `keras/ipu` has the paths of the original modules, so it is one folder with all below it.
    """
    inner = module if (PACKAGE / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]
    return "keras.ipu" if inner.startswith("keras.ipu.") else inner


def folders_within(room: str) -> dict[str, set[str]]:
    """Returns each folder of a room with the other folders of it that its files import."""
    found: dict[str, set[str]] = {}
    for path in files():
        folder = folder_of(name_of(path))
        if folder.startswith(f"{room}."):
            imported = {folder_of(name) for name in imports_of(path)} - {folder}
            found.setdefault(folder, set()).update(filter(re.compile(rf"{room}\.").match, imported))
    return found


@pytest.mark.parametrize("room", ["keras", "trace"])
def test_folders_of_a_room_when_followed_then_there_is_no_circle(room: str) -> None:
    folders = folders_within(room)
    assert len(folders) > 5
    assert circle(folders) == ""


def test_files_of_neighbouring_rooms_then_have_different_names() -> None:
    """Neighbours are the parts of one room, and a room and those that it imports.

    Companions have the names of the modules that they stand for.
    """
    paths: dict[str, dict[str, list[Path]]] = {}
    for path in files():
        room = room_of(name_of(path))
        if room and path.name != "__init__.py" and "companions" not in path.parts:
            paths.setdefault(room, {}).setdefault(path.name, []).append(path)
    neighbours = rooms()
    twins = [same for by_name in paths.values() for same in by_name.values() if len(same) > 1]
    for one, other in combinations(paths, 2):
        if other in neighbours[one] or one in neighbours[other]:
            twins += [
                paths[one][name] + paths[other][name] for name in {*paths[one]} & {*paths[other]}
            ]
    assert [[str(path.relative_to(PACKAGE)) for path in same] for same in twins] == []


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_files_when_they_import_then_no_private_names_of_other_files() -> None:
    def private_names(path: Path) -> set[str]:
        names = {
            alias.name
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("poptorch_emu")
            for alias in node.names
        }
        return set(filter(is_private, names)) - POPTORCHS_NAMES - {ENGINE}

    assert faults(private_names, files()) == {}


def test_files_when_they_ask_by_name_then_for_no_private_attribute() -> None:
    def private_attributes(path: Path) -> set[str]:
        asked = {
            node.args[1].value
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "setattr", "hasattr", "delattr")
            and isinstance(node.args[1], ast.Constant)
        }
        return set(filter(is_private, asked)) - FOREIGN_ATTRIBUTES

    assert faults(private_attributes, files()) == {}


def test_engine_when_imported_then_by_few() -> None:
    users = {path for path in files() if "_C" in imports_of(path)}
    assert {str(path.relative_to(PACKAGE).with_suffix("")) for path in users} <= ENGINE_USERS


def test_functions_when_read_then_import_nothing_inside() -> None:
    def importing_functions(path: Path) -> list[str]:
        return [
            function.name
            for function in ast.walk(tree_of(path))
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            and any(isinstance(n, (ast.Import, ast.ImportFrom)) for n in ast.walk(function))
        ]

    assert faults(importing_functions, files()) == {}


def test_cpp_when_read_then_includes_only_its_floor_or_lower() -> None:
    def climbs(path: Path) -> list[str]:
        folder = path.relative_to(ROOT / "csrc").parts[0] if path.parent.name != "csrc" else ""
        includes = re.findall(r'#include "([^"]+)"', path.read_text())
        floors = {name: CPP_FLOORS[name.split("/")[0] if "/" in name else ""] for name in includes}
        return [name for name, floor in floors.items() if floor > CPP_FLOORS[folder]]

    assert faults(climbs, CPP_FILES) == {}


def test_cpp_when_read_then_only_bindings_know_python() -> None:
    def headers_of_python(path: Path) -> list[str]:
        is_bindings = path.stem.startswith("bindings")
        found = re.findall(r"#include <(Python\.h|torch/extension\.h)>", path.read_text())
        return [] if is_bindings else found

    assert faults(headers_of_python, CPP_FILES) == {}


def python_functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yields each function and its number of lines, without its docstring."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first, length = node.body[0], node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                length -= first.end_lineno - first.lineno + 1
            yield node.name, length


# Comments and literals, which may contain braces.
CPP_WORDS = re.compile(r"""//.*|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\])'""")
CPP_SPACES = re.compile(
    r"(template\s*<[^{}]*>\s*)?(inline )?(namespace|class|struct|enum|union|extern)\b"
)


def cpp_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yields, roughly, each function and its lines: the outermost braces, except of types."""
    text = CPP_WORDS.sub(lambda match: "\n" * match[0].count("\n"), text)
    opened: list[tuple[str, int]] = []
    for match in re.finditer(r"[{}]", text):
        line = text.count("\n", 0, match.start())
        if match[0] == "{":
            head = re.split(r"[;{}]|\n *\n|\n#.*", text[: match.start()])[-1].strip()
            opened.append((head, line - head.count("\n")))
            continue
        head, first = opened.pop()
        if all(CPP_SPACES.match(outer) for outer, _ in opened) and not CPP_SPACES.match(head):
            yield head, line - first + 1


def test_functions_when_there_are_some_then_are_counted() -> None:
    python = 'def one():\n    """Says.\n\n    More."""\n    def two():\n        return 2\n'
    assert dict(python_functions(ast.parse(python))) == {"one": 3, "two": 2}
    cpp = (
        "namespace a {\n\nclass B {\n  int c(int d,\n        int e) {\n    if (d) {\n    }\n  }\n};"
    )
    assert [length for _, length in cpp_functions(cpp + "}")] == [5]
    assert [length for _, length in cpp_functions('void f() {\n  g("{");  // {\n}\n')] == [3]


def test_functions_when_counted_then_are_not_too_long() -> None:
    def long_functions(path: Path) -> dict[str, int]:
        if path in CPP_FILES:
            functions = cpp_functions(path.read_text())
        else:
            functions = python_functions(tree_of(path))
        return {name: count for name, count in functions if count > MAX_FUNCTION_LINES}

    assert faults(long_functions, [*files(), *CPP_FILES]) == {}
