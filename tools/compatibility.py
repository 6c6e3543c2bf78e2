"""Writes the tables of docs/compatibility.md: features and public names, and what tests them.

A test says what it shows with `@pytest.mark.feature("Name", fidelity="exact")`. The markers are
read from the source, so it does not matter which tests run. How names are listed is told in
`public_names.py`. `make docs` rewrites the tables; `--check` only says whether they are up to date.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import public_names  # noqa: E402

DOCUMENT = ROOT / "docs" / "compatibility.md"
TESTS = ROOT / "tests"
BEGIN = "<!-- Made by `make docs` from the tests' markers; do not edit. -->"
END = "<!-- End of what `make docs` makes. -->"
NAMES_BEGIN = "<!-- Made by `make docs` from docstrings and tests; do not edit. -->"
NAMES_END = "<!-- End of the names that `make docs` lists. -->"
FIDELITIES = ("exact", "modelled", "accepted", "refused")

Features = dict[str, dict[str, set[str]]]


def features_of(tests: Path) -> Features:
    """Returns fidelity words and test files of each feature: name -> word -> file names.

    Raises:
        ValueError: a marker is not two literals, or has an unknown word.
    """
    features: Features = defaultdict(lambda: defaultdict(set))
    for path in sorted(tests.rglob("*.py")):
        for name, fidelity in _markers(path):
            features[name][fidelity].add(path.relative_to(tests).as_posix())
    return features


def table(features: Features) -> str:
    """Returns the table: one feature a line, in alphabetical order."""
    lines = ["| Feature | Fidelity | Shown by `tests/` |", "|---|---|---|"]
    for name in sorted(features, key=lambda name: (name.casefold(), name)):
        words = [word for word in FIDELITIES if word in features[name]]
        files = sorted(set().union(*features[name].values()))
        lines.append(f"| {name} | {', '.join(words)} | {', '.join(files)} |")
    return "\n".join(lines)


def updated(document: str, features: Features) -> str:
    """Returns `document` with a new table of features between the two comments.

    Raises:
        ValueError: the comments are not there.
    """
    return _with_table(document, BEGIN, table(features), END)


def current(document: str) -> str:
    """Returns `document` with both tables as the sources have them now.

    Raises:
        ValueError: a marker or a docstring is not as it must be, or a public name is not tested.
    """
    of_names = public_names.table(public_names.names(), public_names.users(TESTS))
    document = updated(document, features_of(TESTS))
    return _with_table(document, NAMES_BEGIN, of_names, NAMES_END)


def _with_table(document: str, begin: str, rows: str, end: str) -> str:
    if document.count(begin) != 1 or document.count(end) != 1:
        raise ValueError(f"The document must have one line '{begin}' and one '{end}' after it.")
    before, rest = document.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{rows}\n{end}{after}"


def _markers(path: Path) -> Iterator[tuple[str, str]]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    calls = {node.func: node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if not isinstance(node, ast.Attribute) or ast.unparse(node) != "pytest.mark.feature":
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


def main() -> None:
    """Rewrites the document, or says with exit status 1 that it has to be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    is_check = parser.parse_args().check
    present = DOCUMENT.read_text(encoding="utf-8")
    wanted = current(present)
    if is_check and present != wanted:
        sys.exit(f"{DOCUMENT.relative_to(ROOT)} is stale: run `make docs`.")
    if not is_check:
        DOCUMENT.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
