"""Checks the built documentation without a network: `python tools/check_site.py build/site`.

Each link within the site must lead to an existing page and anchor. Nothing may be loaded from
elsewhere, for example no script, style or font. External links are only checked for their form.
Each name that the pages of docs/api list must have an entry, and so must each of its members.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import api_entries  # noqa: E402

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_ELSEWHERE = re.compile(r"^https?://[\w.-]+\.[a-z]{2,}(:\d+)?(/\S*)?$")
_IN_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)")


class _Page(HTMLParser):
    """The links of a page, the files that it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the links, files and anchors of a tag."""
        values = {name: value or "" for name, value in attrs}
        self.places.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        is_page = values.get("rel") in ("canonical", "next", "prev", "index", "search")
        if (address := values.get(_LOADED.get(tag, ""))) is not None:
            (self.links if is_page else self.loaded).append(address)


def problems(site: Path) -> Iterator[str]:
    """Yields a text for each problem of a site."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    for path, page in sorted(pages.items()):
        where = path.relative_to(site)
        for address in page.loaded:
            if urlsplit(address).netloc:
                yield f"{where} loads {address}, which needs a network."
            elif not address.startswith("data:"):
                yield from _missing(address, path, pages, where)
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme in ("http", "https"):
                if not _ELSEWHERE.match(address):
                    yield f"{where} links to {address}, which is no address."
            elif parts.scheme != "mailto":
                yield from _missing(address, path, pages, where)
    for path in sorted(site.rglob("*.css")):
        for address in _IN_STYLE.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)} loads {address}, which needs a network."


def _missing(address: str, path: Path, pages: dict[Path, _Page], where: Path) -> Iterator[str]:
    parts = urlsplit(address)
    target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
    if not target.is_file():
        yield f"{where} links to {address}: there is no such file."
    elif parts.fragment and target in pages:
        if unquote(parts.fragment) not in pages[target].places:
            yield f"{where} links to {address}: that page has no such place."


def missing_entries(site: Path) -> Iterator[str]:
    """Yields a text for each name of the API without an entry."""
    for source in sorted((ROOT / "docs" / "api").glob("*.md")):
        page = site / "docs" / "api" / f"{source.stem}.html"
        places = _Page(page.read_text(encoding="utf-8")).places
        for name in api_entries.entries_of_page(source.read_text(encoding="utf-8")):
            if name not in places:
                yield f"{page.relative_to(site)} has no entry of {name}."


def main() -> None:
    """Prints the problems of the site in the first argument; exit status 1 if there are any."""
    site = Path(sys.argv[1]).resolve()
    found = [*problems(site), *missing_entries(site)]
    num_pages = len(list(site.rglob("*.html")))
    print(*found, f"{num_pages} pages, {len(found)} problems.", sep="\n")
    sys.exit(1 if found or not num_pages else 0)


if __name__ == "__main__":
    main()
