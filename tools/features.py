"""Writes the tables of docs/features.md: features and public names with their tests.

A test declares its feature with `@pytest.mark.feature("Name", fidelity="exact")`. The markers are
read from the source, so that it does not matter which tests run. `public_names.py` lists the public
names. `make docs` rewrites the tables; `--check` only reports whether they are up to date.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import marked_tables  # noqa: E402
import public_names  # noqa: E402

DOCUMENT = ROOT / "docs" / "features.md"
TESTS = ROOT / "tests"
FIDELITIES = ("exact", "modelled", "accepted", "refused")

Features = dict[str, dict[str, set[str]]]


def features_of(tests: Path) -> Features:
    """Returns fidelity words and test files of each feature: name -> word -> file names.

    Raises:
        ValueError: a marker's arguments are not two literals, or its word is unknown.
    """
    features: Features = defaultdict(lambda: defaultdict(set))
    for path in sorted(tests.rglob("*.py")):
        for name, fidelity in _markers(path):
            features[name][fidelity].add(path.relative_to(tests).as_posix())
    return features


def table(features: Features) -> str:
    """Returns the table: one feature on each line, in alphabetical order."""
    lines = ["| Feature | Fidelity | Shown by `tests/` |", "|---|---|---|"]
    for name in sorted(features, key=lambda name: (name.casefold(), name)):
        words = [word for word in FIDELITIES if word in features[name]]
        files = sorted(set().union(*features[name].values()))
        lines.append(f"| {name} | {', '.join(words)} | {', '.join(files)} |")
    return "\n".join(lines)


def current(document: str) -> str:
    """Returns `document` with both tables generated from the current sources.

    Raises:
        ValueError: a marker or docstring is invalid, or no test uses a public name.
    """
    names = public_names.table(public_names.names(), public_names.users(TESTS))
    document = marked_tables.with_table(document, "features", table(features_of(TESTS)))
    return marked_tables.with_table(document, "public names", names)


def _markers(path: Path) -> Iterator[tuple[str, str]]:
    nodes = public_names.nodes_of(path)
    calls = {node.func: node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        is_marker = isinstance(node, ast.Attribute) and node.attr == "feature"
        if not is_marker or ast.unparse(node) != "pytest.mark.feature":
            continue
        if node not in calls:
            raise ValueError(
                f"{path}:{node.lineno}: a marker under another name is not found by reading: write "
                'pytest.mark.feature("Name", fidelity="exact") where it is used.'
            )
        yield _name_and_fidelity(calls[node], f"{path}:{node.lineno}")


def _name_and_fidelity(marker: ast.Call, place: str) -> tuple[str, str]:
    values = [*marker.args, *(keyword.value for keyword in marker.keywords)]
    words = [value.value for value in values if isinstance(value, ast.Constant)]
    keywords = [keyword.arg for keyword in marker.keywords]
    if len(words) != 2 or len(values) != 2 or keywords != ["fidelity"]:
        raise ValueError(
            f'{place}: write the marker as feature("Name", fidelity="exact"), not '
            f"{ast.unparse(marker)}: the table is made without running the tests."
        )
    name, fidelity = words
    if fidelity not in FIDELITIES:
        raise ValueError(f"{place}: {fidelity!r} is none of {', '.join(FIDELITIES)}.")
    return str(name), fidelity


if __name__ == "__main__":
    gc.disable()  # Syntax trees have no cycles, and each collection would visit all their nodes.
    marked_tables.run(DOCUMENT, "Writes the tables of docs/features.md.", current)
