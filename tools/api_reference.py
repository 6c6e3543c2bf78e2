"""A Sphinx extension that inserts the entries of `api_entries.py` into the pages of docs/api."""

from __future__ import annotations

from typing import Any

import api_entries
from docutils import nodes
from sphinx.domains.python import PythonDomain


class _ExactNames(PythonDomain):
    """Links a name in a signature to the entry of exactly this name, with or without the package.

    Otherwise Sphinx would link to any entry that ends with the name.
    """

    def find_obj(self, env: Any, _: Any, __: Any, name: str, type: Any, ___: int = 0) -> Any:
        """Finds entries as Sphinx does, but as if each page were about the package."""
        return super().find_obj(env, "poptorch_emu", None, name, type, 0)


def _fidelity(_: str, __: str, word: str, *___: Any, **____: Any) -> Any:
    return [nodes.inline(word, word, classes=["fidelity", word])], []


def _replace(_: Any, page: str, source: list[str]) -> None:
    if page.startswith("docs/api/"):
        source[0] = api_entries.text_of_page(source[0])


def setup(app: Any) -> dict[str, bool]:
    """Registers the entries, the linking of names, and the role of a fidelity word."""
    app.add_domain(_ExactNames, override=True)
    app.add_role("fidelity", _fidelity)
    app.connect("source-read", _replace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
