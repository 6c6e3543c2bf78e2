"""The page's file: complete, closed, and with the user's texts as data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.synthetic_reports import report

from poptorch_emu.report import page
from poptorch_emu.report.page.page_file import to_html, to_script_json

HOSTILE = "</script><script>alert(1)</script><!-- \u2028 <img onerror=alert(2)>{{script}}"
FOLDER = Path(page.__file__).parent


class Elements(HTMLParser):
    """Lists the elements of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append(data)


def test_page_when_names_are_hostile_then_the_elements_are_those_of_any_page() -> None:
    plain, hostile = (Elements(to_html([report(name)])) for name in ("plain", HOSTILE))
    assert hostile.names == plain.names
    data = json.loads(hostile.scripts[0])
    assert data["reports"][0]["name"] == HOSTILE


def test_page_when_read_then_nothing_is_loaded_and_only_its_own_scripts_may_run() -> None:
    found = Elements(to_html([report()]))
    assert not [a for a in found.attributes if "src" in a or (a.get("href") or "#")[0] != "#"]
    (policy,) = [a["content"] for a in found.attributes if a.get("http-equiv")]
    assert policy is not None and policy.startswith("default-src 'none';")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    digests = [hashlib.sha256(text.encode()).digest() for text in found.scripts[:0:-1]]
    assert allowed == [base64.b64encode(digest).decode() for digest in digests]


def test_json_when_a_number_is_not_finite_then_it_is_refused() -> None:
    with pytest.raises(ValueError):
        to_script_json({"rate": float("nan")})


@pytest.mark.parametrize("count", [0, 3])
def test_page_when_not_one_or_two_reports_then_the_error_says_what_to_do(count: int) -> None:
    with pytest.raises(ValueError, match=f"but got {count}. Make a page for each"):
        to_html([report()] * count)


def test_library_when_vendored_then_its_licence_is_beside_it_and_its_version_is_pinned() -> None:
    library = (FOLDER / "echarts" / "echarts.min.js").read_bytes()
    digest = "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
    assert hashlib.sha256(library).hexdigest() == digest
    assert "Apache License" in (FOLDER / "echarts" / "LICENSE").read_text()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.js")), ids=lambda path: path.name)
def test_script_when_read_then_it_is_short_and_makes_no_markup_of_text(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
