"""Prints the requirements in pyproject.toml: the project's dependencies and those of some extras.

A file with this output, for `pip install -r`, needs no built package, unlike `pip install .[test]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import tomllib  # novm: the check of Python's version does not see the handler
except ModuleNotFoundError:  # Python 3.10; every virtual environment has pip.
    from pip._vendor import tomli as tomllib

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def requirements(extras: list[str]) -> list[str]:
    """Returns requirements in pip's format.

    Raises:
        KeyError: an extra does not exist.
    """
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(name for extra in extras for name in optional[extra])]


if __name__ == "__main__":
    print(*requirements(sys.argv[1:]), sep="\n")
